/* What kernels that multiply load at once: eight numbers of 16 bits. */
#pragma once
#include "cuda_numbers.h"

struct __align__(16) Piece {
    Number number[8];
};
