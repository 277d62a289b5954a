/* Steps that a device leaves out.
 *
 * [Note: steps that are left out] On a device the kernels see whether what computed the gradients
 * found its data wrong: from there until it is told they leave parameters and states as they are,
 * and what the host has counted meanwhile it takes back. So a script that goes on does so as if it
 * had not asked for these steps. The host may look before all of their kernels have run: what it
 * counts from then on is left out, too, and who looks next takes back the rest. Also a rank that
 * holds no element of a parameter runs its kernel, as it counts with its peers. */
#include "optim.h"

static void drop_block(msi_storage *s, void *block)
{
    (void)s;
    msi_release(block);
}

/* Memory of the host, which goes when the kernels have run. */
ms_status msi_optim_make_count(ms_optim *optim, msi_optim_param *p)
{
    msi_mem_block *block;

    if (optim->ctx->device == NULL || p->left_out != NULL) {
        return MS_OK;
    }
    MS_TRY(msi_host_alloc(optim->ctx, sizeof(int64_t), MS_MEM_OPTIMIZER, &block));
    ms_status status = msi_storage_wrap(&p->left_out, optim->ctx, MS_STORAGE_BORROWED, block->data,
                                        sizeof(int64_t));

    if (status != MS_OK) {
        msi_release(block);
        return status;
    }
    *(int64_t *)block->data = 0;
    p->left_out->dispose = drop_block;
    p->left_out->user = block;
    return MS_OK;
}

int64_t *msi_optim_count(const msi_optim_param *p)
{
    return p->left_out != NULL ? p->left_out->data : NULL;
}

void msi_optim_uncount(msi_optim_param *p)
{
    const int64_t *count = msi_optim_count(p);
    const int64_t left_out = count != NULL ? *count : 0, n = left_out - p->uncounted;

    p->uncounted = left_out;
    p->steps -= n;
    p->primed = p->primed > n ? p->primed - n : 0;
}
