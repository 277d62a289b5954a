/* Body of rotary.c for one dtype; the macros are documented in each_register.h. */

static void LOCAL(turn_row)(const msi_rotary_args *a, T *out, const T *x, const T *cos,
                            const T *sin)
{
    const int64_t half = a->half;
    const V sign = SPLAT(a->inverse ? -1 : 1);
    T *upper = out + half;

    for (int64_t i = 0; i < half; i += WIDTH) {
        const int64_t n = half - i;
        const V u = LOAD_N(x + i, n), v = LOAD_N(x + half + i, n);
        const V c = LOAD_N(cos + i, n), s = LOAD_N(sin + i, n) * sign;
        V y = u * c - v * s, z = v * c + u * s;

        if (a->accumulate) {
            y += LOAD_N(out + i, n);
            z += LOAD_N(upper + i, n);
        }
        STORE_N(out + i, y, n);
        STORE_N(upper + i, z, n);
    }
}

void MSI_NAME(LOCAL(rotary))(const void *args)
{
    const msi_rotary_args *a = args;
    const msi_loop *rows = &a->rows;
    const int32_t outer = rows->ndim > 0 ? rows->ndim - 1 : 0;
    const int64_t n = loop_count(rows, outer), width = loop_width(rows);
    T *out;
    const T *x, *cos, *sin;

    for (int64_t i = 0; i < n; i++) {
        out = (T *)a->out + loop_offset(rows, 0, outer, i);
        x = (const T *)a->x + loop_offset(rows, 1, outer, i);
        cos = (const T *)a->cos + loop_offset(rows, 2, outer, i);
        sin = (const T *)a->sin + loop_offset(rows, 3, outer, i);
        for (int64_t j = 0; j < width; j++) {
            LOCAL(turn_row)
            (a, out + j * loop_step(rows, 0), x + j * loop_step(rows, 1),
             cos + j * loop_step(rows, 2), sin + j * loop_step(rows, 3));
        }
    }
}
