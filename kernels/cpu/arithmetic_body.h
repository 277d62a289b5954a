/* Body of arithmetic.c for one dtype; the comments beside MSI_KERNELS say what each computes. */

EW(add, 2, a + b)
EW(sub, 2, a - b)
EW(mul, 2, a *b)
EW(affine, 1, a *s0 + s1)

#ifndef INTEGER
EW(div, 2, a / b)
EW_SCALED(scale, 1, a *s0, *(const double *)r->args->in[1])
EW(reciprocal, 1, s0 / a)
EW(mul_neg, 3, -(a *b *c))
EW(div_neg, 3, -(a *b / c))
EW(sqrt, 1, OF(sqrt)(a))
EW(sqrt_grad, 2, a / (b + b))
EW_SCALED(mse_grad, 2, (a - b) * s0, r->args->scalar[0] * (double)*(const REAL *)r->args->in[2])
#ifndef NARROW /* squares of narrow numbers are f32 */
EW(mse, 2, (a - b) * (a - b))
#endif
#endif
