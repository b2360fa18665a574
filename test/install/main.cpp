// A C++ program against an installed Convoy: a chain is parsed, planned and printed.
#include <convoy.h>
#include <cstdio>
#include <string>

int main()
{
    cvy_graph *graph = nullptr;
    cvy_plan *plan = nullptr;
    const cvy_options options = {sizeof(cvy_options), CVY_CPU};
    std::string text(1 << 16, '\0');
    const bool good = !cvy_graph_parse("x[1,3,8,8] | conv2d(4,3) | relu", &graph) &&
                      !cvy_plan_create(graph, &options, &plan) &&
                      !cvy_plan_print(plan, &text[0], text.size(), nullptr);
    std::printf("%s\n", good ? text.c_str() : cvy_last_error());
    cvy_plan_free(plan);
    cvy_graph_free(graph);
    return !good;
}
