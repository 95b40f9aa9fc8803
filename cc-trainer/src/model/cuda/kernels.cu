// The network's arithmetic apart from matrix products. There is one thread per element, and neither shared
// memory nor synchronisation: each kernel is a plain function of its thread's index, and therefore compiles as
// C++ for the CPU as well.
//
// Matrices are row-major, float, with a stride (the distance from a row to the next, elements). call.rs lists
// each kernel's arguments.

#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)

// The activation functions, as call.rs numbers them.
#define RELU 1
#define TANH 2

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// into <- from, [rows, cols].
extern "C" __global__ void copy_columns(const float *from, int from_stride, float *into, int into_stride, int rows,
                                        int cols) {
    unsigned i = THREAD;
    if (i >= (unsigned)(rows * cols)) return;
    size_t row = i / cols, col = i % cols;
    into[row * into_stride + col] = from[row * from_stride + col];
}

// into <- value, [count].
extern "C" __global__ void fill(float *into, int count, float value) {
    unsigned i = THREAD;
    if (i < (unsigned)count) into[i] = value;
}

// y <- activation(y + bias), [rows, cols].
extern "C" __global__ void activate(float *y, int stride, const float *bias, int rows, int cols, int activation) {
    unsigned i = THREAD;
    if (i >= (unsigned)(rows * cols)) return;
    size_t row = i / cols, col = i % cols;
    float sum = y[row * stride + col] + bias[col];
    if (activation == RELU) sum = sum > 0.0f ? sum : 0.0f;
    if (activation == TANH) sum = tanhf(sum);
    y[row * stride + col] = sum;
}

// d <- derivatives by an activation's input, from those by its output y, [rows, cols].
extern "C" __global__ void activate_backward(float *d, int d_stride, const float *y, int y_stride, int rows, int cols,
                                             int activation) {
    unsigned i = THREAD;
    if (i >= (unsigned)(rows * cols)) return;
    size_t row = i / cols, col = i % cols;
    float out = y[row * y_stride + col];
    float slope = activation == TANH ? 1.0f - out * out : out > 0.0f ? 1.0f : 0.0f;
    d[row * d_stride + col] *= slope;
}

// The state before the first step, [batch_size, units]: 0 where an episode begins.
extern "C" __global__ void lstm_begin(const float *h, const float *c, const float *not_done, float *h_before,
                                      float *c_before, int batch_size, int units) {
    unsigned i = THREAD;
    if (i >= (unsigned)(batch_size * units)) return;
    float mask = not_done[i / units];
    h_before[i] = mask * h[i];
    c_before[i] = mask * c[i];
}

// One step of the LSTM. gates, [batch_size, 4 units] in the order i, f, g, o: from pre-activations without bias
// to gates. c and h: the state after the step. The state before the next step: 0 where an episode begins there.
extern "C" __global__ void lstm_forward(float *gates, const float *bias, const float *c_before, float *c, float *h,
                                        int h_stride, const float *not_done_next, float *h_before_next,
                                        float *c_before_next, int batch_size, int units) {
    unsigned i = THREAD;
    if (i >= (unsigned)(batch_size * units)) return;
    size_t sequence = i / units, unit = i % units;
    float *gate = gates + sequence * 4 * units + unit;
    const float *b = bias + unit;
    float in = sigmoid(gate[0] + b[0]);
    float forget = sigmoid(gate[units] + b[units]);
    float candidate = tanhf(gate[2 * units] + b[2 * units]);
    float out = sigmoid(gate[3 * units] + b[3 * units]);
    gate[0] = in;
    gate[units] = forget;
    gate[2 * units] = candidate;
    gate[3 * units] = out;
    float cell = forget * c_before[i] + in * candidate;
    float hidden = out * tanhf(cell);
    c[i] = cell;
    h[sequence * h_stride + unit] = hidden;
    float mask = not_done_next[sequence];
    h_before_next[i] = mask * hidden;
    c_before_next[i] = mask * cell;
}

// One step of the LSTM backward. gates: from gates to derivatives by their pre-activations. dh: derivatives by h
// from the heads. dh_next and dc: derivatives by the state before the next step; dc then by the cell state before
// this step.
extern "C" __global__ void lstm_backward(float *gates, const float *c_before, const float *c, const float *dh,
                                         int dh_stride, const float *not_done_next, const float *dh_next, float *dc,
                                         int batch_size, int units) {
    unsigned i = THREAD;
    if (i >= (unsigned)(batch_size * units)) return;
    size_t sequence = i / units, unit = i % units;
    float *gate = gates + sequence * 4 * units + unit;
    float in = gate[0], forget = gate[units], candidate = gate[2 * units], out = gate[3 * units];
    float mask = not_done_next[sequence];
    float tanh_c = tanhf(c[i]);
    float by_h = dh[sequence * dh_stride + unit] + mask * dh_next[i];
    float by_c = mask * dc[i] + by_h * out * (1.0f - tanh_c * tanh_c);
    gate[0] = by_c * candidate * in * (1.0f - in);
    gate[units] = by_c * c_before[i] * forget * (1.0f - forget);
    gate[2 * units] = by_c * in * (1.0f - candidate * candidate);
    gate[3 * units] = by_h * tanh_c * out * (1.0f - out);
    dc[i] = by_c * forget;
}

// sums[s] <- the sum of the squares of every parts-th element of x, [count], beginning with the s-th. Each sum has
// few enough terms for float.
extern "C" __global__ void sum_squares(const float *x, int count, float *sums, int parts) {
    unsigned part = THREAD;
    if (part >= (unsigned)parts) return;
    float sum = 0.0f;
    for (unsigned i = part; i < (unsigned)count; i += parts) sum += x[i] * x[i];
    sums[part] = sum;
}

// A step of RMSprop, [count]; gradients are scaled first, mean squares for the step alone by the correction. Without
// momentum, velocity is neither read nor written.
extern "C" __global__ void rmsprop(float *parameters, const float *gradient, float *mean_square, float *velocity,
                                   int count, float scale, float learning_rate, float decay, float correction,
                                   float epsilon, float momentum) {
    unsigned i = THREAD;
    if (i >= (unsigned)count) return;
    float g = scale * gradient[i];
    float square = decay * mean_square[i] + (1.0f - decay) * g * g;
    mean_square[i] = square;
    float direction = g / (sqrtf(correction * square) + epsilon);
    if (momentum > 0.0f) {
        direction += momentum * velocity[i];
        velocity[i] = direction;
    }
    parameters[i] -= learning_rate * direction;
}
