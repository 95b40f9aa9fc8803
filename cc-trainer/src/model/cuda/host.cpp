// The kernels of kernels.cu as functions on the CPU, which runs their threads one after the other. For each kernel k
// there is run_k, which takes its arguments as CUDA's cuLaunchKernel does, and signature_k, with one letter per
// argument.

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

struct Index {
    unsigned x;
};
static thread_local Index blockIdx, blockDim, threadIdx;

#define __global__
#define __device__ static inline

#include "kernels.cu"

template <class T> constexpr char letter() {
    return std::is_pointer<T>::value ? 'p' : std::is_floating_point<T>::value ? 'f' : 'i';
}

template <class... A> const char *signature(void (*)(A...)) {
    static const char letters[] = {letter<A>()..., 0};
    return letters;
}

template <class... A, size_t... I>
void run(void (*kernel)(A...), unsigned blocks, unsigned width, void **arguments, std::index_sequence<I...>) {
    blockDim.x = width;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < width; threadIdx.x++) kernel(*static_cast<A *>(arguments[I])...);
}

template <class... A> void run(void (*kernel)(A...), unsigned blocks, unsigned width, void **arguments) {
    run(kernel, blocks, width, arguments, std::index_sequence_for<A...>());
}

#define KERNEL(name)                                                                                                   \
    extern "C" const char *signature_##name() { return signature(name); }                                              \
    extern "C" void run_##name(unsigned blocks, unsigned width, void **arguments) {                                    \
        run(name, blocks, width, arguments);                                                                           \
    }

// Defined on the compiler's command line: KERNEL(…) for each kernel.
KERNELS
