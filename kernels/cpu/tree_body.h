/* Body of tree.c for one dtype of the result. */

/* A register of elements of a source (if n < WIDTH the first n), in the compute type. */
LANES_INLINE V LOCAL(leaf)(const void *src, int32_t dtype, int64_t i, int64_t n)
{
    if (dtype == DTYPE) {
        return LOAD_N((const T *)src + i, n);
    }
#if !IS_F64
    if (dtype == MS_DTYPE_F32) {
        return load_n_f32w((const float *)src + i, n);
    }
    if (dtype == MS_DTYPE_BF16) {
        return load_n_bf16w((const uint16_t *)src + i, n);
    }
    if (dtype == MS_DTYPE_F16) {
        return load_n_f16w((const uint16_t *)src + i, n);
    }
#endif
    REAL x[WIDTH]; /* f64 mixed with other dtypes is rare: lane by lane */

    for (int64_t k = 0; k < WIDTH; k++) {
        x[k] = k < n ? (REAL)get(src, dtype, i + k) : 0;
    }
    return OF(load)(x);
}

/* One inner node. If either side is NaN, so is the result, also for max and min. */
LANES_INLINE V LOCAL(node)(V left, V right, int32_t reduce)
{
    if (reduce == MSI_TREE_MAX) {
        return OF(select)(OF(ne)(left, left), left, OF(max)(left, right));
    }
    if (reduce == MSI_TREE_MIN) {
        return OF(select)(OF(ne)(left, left), left, OF(min)(left, right));
    }
    return left + right;
}

/* The tree over n <= WIDTH elements. */
LANES_INLINE V LOCAL(merge)(const msi_tree_args *a, int32_t n_src, int32_t dtype, int32_t reduce,
                            int64_t i, int64_t n)
{
    V nodes[LEVELS];
    int32_t top = 0;

#pragma GCC unroll 4
    for (int32_t k = 0; k < n_src; k++) {
        V x = LOCAL(leaf)(a->src[k].data, dtype >= 0 ? dtype : a->src[k].dtype, i, n);

#pragma GCC unroll 4
        for (int32_t bits = k; bits & 1; bits >>= 1) {
            x = LOCAL(node)(nodes[--top], x, reduce);
        }
        nodes[top++] = x;
    }
    V x = nodes[--top];

#pragma GCC unroll 4
    while (top > 0) {
        x = LOCAL(node)(nodes[--top], x, reduce);
    }
    return x;
}

LANES_INLINE V LOCAL(round_once)(V x, int32_t dtype)
{
#if IS_F64
    if (dtype != MS_DTYPE_F64) {
        for (int64_t k = 0; k < WIDTH; k++) {
            x[k] = rounded(x[k], dtype);
        }
    }
    return x;
#else
    return rounded_lanes(x, dtype);
#endif
}

/* Process n <= WIDTH elements, from the leaves to memory. */
LANES_INLINE void LOCAL(stretch)(const msi_tree_args *a, int32_t n_src, int32_t dtype,
                                 int32_t reduce, REAL factor, int32_t round, bool accumulate,
                                 int64_t i, int64_t n)
{
    V x = LOCAL(merge)(a, n_src, dtype, reduce, i, n);
    T *out = (T *)a->out + i;

    if (reduce != MSI_TREE_MAX && reduce != MSI_TREE_MIN) {
        x *= factor;
    }
    x = LOCAL(round_once)(x, round);
    STORE_N(out, accumulate ? LOAD_N(out, n) + x : x, n);
}

/* Any sources, from element i on. */
static __attribute__((noinline)) void LOCAL(run_any)(const msi_tree_args *a, int64_t i)
{
    const REAL factor = (REAL)a->factor;

    for (; i + WIDTH <= a->n; i += WIDTH) {
        LOCAL(stretch)(a, a->n_src, -1, a->reduce, factor, a->round_dtype, a->accumulate, i, WIDTH);
    }
    if (i < a->n) {
        LOCAL(stretch)
        (a, a->n_src, -1, a->reduce, factor, a->round_dtype, a->accumulate, i, a->n - i);
    }
}

/* A sum over n_src sources of one dtype, both constants. Other arguments are local copies, so that
 * the compiler need not reload them after stores. */
LANES_INLINE void LOCAL(run)(const msi_tree_args *a, int32_t n_src, int32_t dtype)
{
    const REAL factor = (REAL)a->factor;
    const int64_t n = a->n;
    const int32_t round = a->round_dtype;
    const bool accumulate = a->accumulate;
    int64_t i = 0;

    for (; i + WIDTH <= n; i += WIDTH) {
        LOCAL(stretch)(a, n_src, dtype, 0, factor, round, accumulate, i, WIDTH);
    }
    LOCAL(run_any)(a, i);
}

static __attribute__((noinline)) void LOCAL(run_mixed)(const msi_tree_args *a)
{
    for (int64_t i = 0; i < a->n; i++) {
        T *out = (T *)a->out + i;
        const V x = SPLAT(mixed_element(a, i, IS_F64));

        STORE_N(out, a->accumulate ? LOAD_N(out, 1) + x : x, 1);
    }
}

void MSI_NAME(LOCAL(tree))(const void *args)
{
    const msi_tree_args *a = args;
    const bool extreme = a->reduce == MSI_TREE_MAX || a->reduce == MSI_TREE_MIN;
    int32_t dtype = a->n_src > 0 ? a->src[0].dtype : -1;

    for (int32_t k = 1; k < a->n_src; k++) {
        dtype = a->src[k].dtype == dtype ? dtype : -1;
    }
    if (a->n_src == 0) {
        return;
    }
    if (a->mixed) {
        LOCAL(run_mixed)(a);
        return;
    }
#define UNROLLED(count, source)                                                                    \
    if (a->n_src == (count) && dtype == (source) && !extreme) {                                    \
        LOCAL(run)(a, count, source);                                                              \
        return;                                                                                    \
    }
    UNROLLED(1, REAL_DTYPE)
    UNROLLED(2, REAL_DTYPE)
    UNROLLED(4, REAL_DTYPE)
#if !IS_F64
    UNROLLED(1, MS_DTYPE_BF16)
    UNROLLED(2, MS_DTYPE_BF16)
    UNROLLED(4, MS_DTYPE_BF16)
    UNROLLED(1, MS_DTYPE_F16)
    UNROLLED(2, MS_DTYPE_F16)
    UNROLLED(4, MS_DTYPE_F16)
#endif
#undef UNROLLED
    LOCAL(run_any)(a, 0);
}
