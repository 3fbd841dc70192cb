/* The kernels of one source file as functions of a library; the compiler is told SOURCE and KERNELS(EACH). */
#include "cuda_shim.h"

#include SOURCE

KERNELS(LAUNCHABLE)
