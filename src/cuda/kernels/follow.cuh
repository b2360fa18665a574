// follow.cuh - how launches of a stream follow each other: one function, and nothing else, so that test/emulate can
// put its own in its place.
//
// A launch may begin when every block of the one before it has said that it may, which it does at once; it then
// waits here until all that came before is done and can be seen. So the next kernel is on its multiprocessors when
// the last one leaves them. Every kernel calls this before anything else, but for those whose blocks wait for each
// other: they are launched after all has ended.
#ifndef CVY_FOLLOW_CUH
#define CVY_FOLLOW_CUH

static __device__ __forceinline__ void cvy_follow()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

#endif
