// follow.cuh - how launches of a stream follow each other: one function, and nothing else, so that test/emulate can
// put its own in its place.
//
// A launch may begin when every block of the previous launch allows it, which blocks do immediately. It then
// waits here until everything before it is complete and visible. So the next kernel is on its multiprocessors when
// the previous one ends. Every kernel calls this before anything else, except those whose blocks wait for each
// other: they are launched after everything before them has ended.
#ifndef CVY_FOLLOW_CUH
#define CVY_FOLLOW_CUH

static __device__ __forceinline__ void cvy_follow()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

#endif
