extern "C" __global__ void double_all(float *x) { x[threadIdx.x] *= 2.0f; }
