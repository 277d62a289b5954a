/* kernels/onednn/guarded.cpp: the matrix library throws, at each of its allocations in turn, cold
 * and warm: an error, and the same call afterwards gives the product. This program's operator new
 * stands in front of the library's (see CMakeLists.txt). Each test runs in a child: what the
 * library leaves lying when it throws goes with that. */
#include "backend.h"
#include "child_test.h"
#include "product.h"

#include <dlfcn.h>

/* -- what throws ------------------------------------------------------------------------------- */

static struct {
    int64_t left;   /* allocations that still pass; -1: all do */
    bool happened;  /* since arm() */
    bool something; /* not std::bad_alloc but std::runtime_error */
} fault = {.left = -1};

/* libstdc++'s */
void _ZSt17__throw_bad_allocv(void);
void _ZSt21__throw_runtime_errorPKc(const char *what);
__attribute__((visibility("default"))) void *_Znwm(size_t n); /* operator new */

void *_Znwm(size_t n)
{
    static void *(*real)(size_t n);

    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "_Znwm");
    }
    if (fault.left < 0 || fault.left-- > 0) {
        return real(n);
    }
    fault.happened = true;
    if (fault.something) {
        _ZSt21__throw_runtime_errorPKc("as the test wants");
    }
    _ZSt17__throw_bad_allocv();
    return NULL;
}

/* `call` with each allocation of the library throwing in turn, until none is left; past a hundred
 * one in a hundred: what it generates once takes thousands. Every failure has this kind.
 * @return how many there were, or -1 */
static int64_t fail_each(ms_status (*call)(void *arg), void *arg, ms_status kind)
{
    int64_t n_failed = 0;

    for (int64_t n = 0;; n += 1 + n / 100) {
        fault.happened = false;
        fault.left = n;
        ms_status status = call(arg);

        fault.left = -1;
        if (!fault.happened) {
            return status == MS_OK ? n_failed : -1;
        }
        if (status != MS_OK) {
            n_failed++;
            if (status != kind || strstr(ms_error_message(), "oneDNN: ") == NULL) {
                return -1;
            }
        }
    }
}

/* -- products ---------------------------------------------------------------------------------- */

static ms_status multiply(void *arg)
{
    product *p = arg;

    memcpy(p->c.data, p->before.data, (size_t)typed_nbytes(&p->c));
    return msi_gemm(msi_context(), &p->args);
}

static ms_status multiply_anew(void *arg)
{
    ms_close();
    return multiply(arg);
}

static bool same(const typed *a, const typed *b)
{
    return memcmp(a->data, b->data, (size_t)typed_nbytes(a)) == 0;
}

static product biased_product(int32_t dtype)
{
    product p = make(dtype, dtype, 40, 50, 60, 2, true, true, 0);

    p.args.bias = p.bias.data;
    p.args.accumulate = 1;
    return p;
}

/* Primitives that the context keeps of `p` beside those of `other`: where there are no bf16
 * products one for the product in f32, and that there is none in bf16. */
static int64_t kept_of(product *p, product *other)
{
    ms_close();
    if (multiply(other) != MS_OK) {
        return -1;
    }
    const int64_t n_kept = msi_gemm_kept(msi_context());

    return multiply(p) == MS_OK ? msi_gemm_kept(msi_context()) - n_kept : -1;
}

/* Opening its state, creating a primitive and running it, each alone. */
static int every_allocation(int32_t dtype, ms_status kind)
{
    product p = biased_product(dtype),
            other = make(MS_DTYPE_F32, MS_DTYPE_F32, 40, 50, 60, 1, false, false, 0);
    const int64_t n_opening = fail_each(multiply_anew, &p, kind);

    CHILD_CHECK(n_opening > 0);
    CHILD_CHECK(count_wrong(&p, inner_epsilon(dtype)) == 0);
    typed first = typed_copy(&p.c);
    const int64_t n_own = kept_of(&p, &other);

    CHILD_CHECK(n_own > 0);
    ms_close();
    CHILD_CHECK(multiply(&other) == MS_OK);
    const int64_t n_kept = msi_gemm_kept(msi_context());
    const int64_t n_creating = fail_each(multiply, &p, kind);

    CHILD_CHECK(msi_gemm_kept(msi_context()) == n_kept + n_own);
    CHILD_CHECK(same(&p.c, &first));
    const int64_t n_running = fail_each(multiply, &p, kind);

    CHILD_CHECK(n_running > 0 && n_creating > n_running && n_opening > n_creating);
    CHILD_CHECK(same(&p.c, &first));
    CHILD_CHECK(multiply_anew(&p) == MS_OK); /* nothing fails */
    CHILD_CHECK(same(&p.c, &first));
    typed_free(&first);
    free_product(&other);
    free_product(&p);
    return 0;
}

static int memory_f32(void)
{
    return every_allocation(MS_DTYPE_F32, MS_OUT_OF_MEMORY);
}

static int memory_bf16(void)
{
    return every_allocation(MS_DTYPE_BF16, MS_OUT_OF_MEMORY);
}

static int something_else(void)
{
    product p = biased_product(MS_DTYPE_F32);

    CHILD_CHECK(multiply(&p) == MS_OK); /* what the library sets up once is there */
    free_product(&p);
    fault.something = true;
    return every_allocation(MS_DTYPE_F32, MS_DEVICE_ERROR);
}

/* The library is loaded and not yet used: what it sets up on first use fails too. */
static void in_child_with_library(int (*body)(void))
{
    const char *folder = getenv("MS_PLUGIN_DIR"), *use = getenv("MS_ONEDNN");
    char path[4096];

    snprintf(path, sizeof(path), "%s/libmoonshard_onednn.so", folder != NULL ? folder : "");
    if ((use != NULL && strcmp(use, "0") == 0) || dlopen(path, RTLD_NOW | RTLD_LOCAL) == NULL) {
        skip();
    }
    in_child(body);
}

static void test_backend_thrown__no_memory_in_the_library_is_an_error(void **state)
{
    (void)state;
    in_child_with_library(memory_f32);
    in_child_with_library(memory_bf16);
}

static void test_backend_thrown__whatever_else_it_throws_is_an_error(void **state)
{
    (void)state;
    in_child_with_library(something_else);
}

/* -- backward ---------------------------------------------------------------------------------- */

enum { SIZE = 40 };

typedef struct graph {
    ms_tensor *x, *w, *grad;
} graph;

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_thrown__no_memory_in_the_library_is_an_error),
        cmocka_unit_test(test_backend_thrown__whatever_else_it_throws_is_an_error),
    };

    return cmocka_run_group_tests_name("backend/thrown", tests, NULL, NULL);
}
