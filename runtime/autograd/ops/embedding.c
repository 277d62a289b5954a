/* Rows of a table. The gradient adds rows in token order, so repeated ids sum alike in every run,
 * and rounds once. */
#include "meta.h"
#include "operand.h"

enum { TABLE, IDS };
enum { SAVED_IDS };

static ms_status embedding_meta(const msi_meta *m)
{
    const msi_view *table = m->in[TABLE], *ids = m->in[IDS];
    int64_t shape[MS_MAX_DIMS];

    if (table->ndim != 2) {
        return MS_FAIL(MS_VALUE_ERROR, "embedding: table has shape %s, expected (V, C)",
                       msi_shape_text(table->ndim, table->shape));
    }
    if (ids->ndim >= MS_MAX_DIMS) {
        return MS_FAIL(MS_VALUE_ERROR, "embedding: ids have %d dimensions, expected at most %d",
                       (int)ids->ndim, MS_MAX_DIMS - 1);
    }
    if (ids->dtype != MS_DTYPE_I64) {
        return MS_FAIL(MS_TYPE_ERROR, "embedding: ids are %s, expected i64",
                       ms_dtype_name(ids->dtype));
    }
    for (int32_t i = 0; i < ids->ndim; i++) {
        shape[i] = ids->shape[i];
    }
    shape[ids->ndim] = table->shape[1];
    MS_TRY(msi_result(m->out, table->dtype, ids->ndim + 1, shape));
    return msi_check_kernel("embedding", MSI_K_embedding, table->dtype);
}

static ms_status embedding_forward(msi_op_call *c)
{
    msi_view table, ids;
    void *table_data, *id_data;
    msi_fault fault = {0};
    ms_status status;

    MS_TRY(msi_contiguous(&ids, c->ctx, &c->in[IDS]->v));
    MS_TRY_GOTO(msi_contiguous(&table, c->ctx, &c->in[TABLE]->v), no_table);
    MS_TRY_GOTO(msi_view_data(&table, &table_data), out);
    MS_TRY_GOTO(msi_view_data(&ids, &id_data), out);
    const msi_embedding_args args = {.n = msi_view_numel(&ids),
                                     .width = table.shape[1],
                                     .vocab = table.shape[0],
                                     .ids = id_data,
                                     .table = table_data,
                                     .out = msi_view_ptr(&c->out[0]->v),
                                     .fault = msi_device_fault(c->ctx, &fault)};

    MS_TRY_GOTO(msi_dispatch("embedding", MSI_K_embedding, table.dtype, &args), out);
    MS_TRY_GOTO(msi_fault_report(&fault), out);
    msi_save(c, SAVED_IDS, &ids);
out:
    msi_storage_release(table.storage);
no_table:
    msi_storage_release(ids.storage);
    return status;
}

static ms_status embedding_backward(msi_bwd *b)
{
    const msi_view *table = msi_bwd_operand(b, TABLE), *ids;
    msi_view dy, work;
    msi_target t;
    void *id_data, *dy_data;

    MS_TRY(msi_bwd_saved(b, SAVED_IDS, &ids));
    MS_TRY(msi_bwd_contiguous(b, msi_bwd_grad(b, 0), &dy));
    MS_TRY(msi_view_data(ids, &id_data));
    MS_TRY(msi_view_data(&dy, &dy_data));
    MS_TRY(msi_target_open(&t, b, TABLE, dy.dtype, MSI_CAN_ADD | MSI_CAN_WIDEN));
    msi_embedding_args args = {.n = msi_view_numel(ids),
                               .width = table->shape[1],
                               .vocab = table->shape[0],
                               .ids = id_data,
                               .dy = dy_data,
                               .dtable = t.data,
                               .dtable_dtype = t.view.dtype,
                               .accumulate = t.add};
    int64_t n_work = msi_work_bytes(msi_bwd_context(b), MSI_K_embedding_grad, dy.dtype, &args);

    if (n_work < 0) {
        n_work = ms_dtype_is_narrow(t.view.dtype) ? (args.vocab + args.n) * 8 : 0;
    }
    if (n_work > 0) {
        MS_TRY(msi_bwd_temp(b, MS_DTYPE_U8, 1, &n_work, &work));
        args.work = msi_view_ptr(&work);
    }
    MS_TRY(msi_dispatch("embedding", MSI_K_embedding_grad, dy.dtype, &args));
    return msi_target_close(&t);
}

const msi_op msi_op_embedding = {.name = "embedding",
                                 .meta = embedding_meta,
                                 .forward = embedding_forward,
                                 .backward = embedding_backward,
                                 .n_saved = 1};

ms_status ms_op_embedding(ms_tensor **out, ms_tensor *table, ms_tensor *ids)
{
    ms_tensor *const in[2] = {table, ids};

    *out = NULL;
    return msi_op_run(&msi_op_embedding, NULL, in, 2, out, 1);
}
