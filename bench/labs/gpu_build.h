// gpu_build.h - shared by gpu_tc.cu and gpu_product.cu: kernels compiled by nvcc, several at a time.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

// Compiles `source` of the folder `kernels` into a cubin; what is wrong with it (errors, spills, serialised wgmma)
// goes to log. The variable `more` may hold further options, to try macros.
static bool compile_kernel(const std::string &kernels, const char *more, const std::string &source,
                           const std::string &options, const std::string &out, std::string &log)
{
    const char *tried = getenv(more);
    const std::string command = "nvcc -std=c++17 -O3 -cubin -gencode=arch=compute_90a,code=sm_90a -Xptxas -v " +
                                options + " " + (tried ? tried : "") + " -o " + out + " " + kernels + "/" + source +
                                " >" + out + ".log 2>&1";
    const int rc = system(command.c_str());
    std::ifstream in(out + ".log");
    std::string line;
    for (int lines = 0; lines < 3 && std::getline(in, line);)
        if (line.find("error") != line.npos || line.find("C75") != line.npos || line.find("fatal") != line.npos ||
            (line.find("spill") != line.npos && line.find(" 0 bytes spill stores") == line.npos))
            lines++, log += "    " + line + "\n";
    return rc == 0;
}
// make(item, number) for all of them, by as many threads as there are cores.
template <typename T, typename F> static void make_each(std::vector<T> &all, F make)
{
    std::atomic<int> next{0};
    std::vector<std::thread> pool;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); i++)
        pool.emplace_back([&] {
            for (int k; (k = next++) < (int)all.size();) make(all[k], k);
        });
    for (auto &t : pool) t.join();
}
