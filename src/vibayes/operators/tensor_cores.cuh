// What kernels need that multiply on tensor cores in float64: the product, and copies to shared memory in the background.

#ifndef EMULATED
// c += a b for 16 x 4 and 4 x 8 elements, a warp's threads together
__device__ void multiply_add(double (&c)[4], double2 a, double b) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a.x), "d"(a.y), "d"(b));
#else
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(c[0]), "+d"(c[1])
      : "d"(a.x), "d"(b));
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(c[2]), "+d"(c[3])
      : "d"(a.y), "d"(b));
#endif
}

// *to = given ? *from : 0, sooner or later
template <typename T>
__device__ void copy(T* to, const T* from, bool given) {
  const unsigned shared = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(from), "n"(sizeof(T)),
               "r"(given ? (int)sizeof(T) : 0)
               : "memory");
}

__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}
#endif
