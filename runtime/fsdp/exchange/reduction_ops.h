/* The ways to sum gradients, and what they share. */
#ifndef MSI_FSDP_REDUCTION_OPS_H
#define MSI_FSDP_REDUCTION_OPS_H

#include "reduction.h"

struct msi_reduction_ops {
    /* This rank's gradient is complete: enqueue it, in program order. NULL: peers read it. */
    ms_status (*commit)(msi_reduction *r);
    /* All gradients are complete: send this host's roots. NULL: there is one host. */
    ms_status (*roots)(msi_reduction *r);
    /* All gradients are complete: sum this rank's chunk for all. NULL: there are no chunks. */
    ms_status (*chunk)(msi_reduction *r);
    /* The rest, when all have done that: store the sum of own extents. */
    ms_status (*finish)(msi_reduction *r);
};

/* In slots: shards add their extents of all parts; replicas add a chunk each, then copy those of
 * the others. */
extern const msi_reduction_ops msi_reduce_parts, msi_reduce_chunks;
/* By the devices' communicator: shards get a piece from each rank; so do replicas, and then gather
 * the sums. */
extern const msi_reduction_ops msi_reduce_pieces, msi_reduce_gathered;
/* On several hosts. */
extern const msi_reduction_ops msi_reduce_roots, msi_reduce_chunks_of_roots;

/* Sources of the sum of an extent of the reduced gradient. Returns their number. */
typedef int32_t (*msi_reduction_sources)(const msi_reduction *r, const msi_extent *e,
                                         msi_tree_source *src);

static inline char *msi_reduction_element(const msi_reduction *r, int32_t rank, int64_t i)
{
    return msi_slot_part(r->slot, rank) + i * ms_dtype_size(r->dtype);
}

/* List the parts of this host's ranks, from element `first` on. Returns their number. */
int32_t msi_reduction_parts(const msi_reduction *r, int64_t first, msi_tree_source *src);
/* Replicas: copy the sums of own extents from the parts where ranks summed their chunks. */
ms_status msi_reduction_copy_chunks(msi_reduction *r);
/* Tree sum of n elements of the sources, in nodes of `node_dtype`, times `factor`. */
ms_status msi_reduction_sum(const msi_reduction *r, const msi_tree_source *src, int32_t n_src,
                            int64_t n, void *out, int32_t dtype, double factor, bool add);
/* An inner node: of node_dtype, unrounded. */
ms_status msi_reduction_node(const msi_reduction *r, const msi_tree_source *src, int32_t n_src,
                             int64_t n, void *out);
/* The same for own extents, to the destination. */
ms_status msi_reduction_sum_own(msi_reduction *r, msi_reduction_sources sources, double factor);
/* Copy n sums of rank q's part, from `first` on. */
ms_status msi_reduction_take(const msi_reduction *r, int32_t q, int64_t first, int64_t n, void *out,
                             bool add);
/* REDUCE waits until all gradients are written, */
ms_status msi_reduction_await_gradients(const msi_reduction *r);
/* for a destination it adds to. */
ms_status msi_reduction_await_prepared(const msi_reduction *r, bool add);

/* Where an extent's sum goes. */
static inline char *msi_reduction_out(const msi_reduction *r, void *grad, const msi_extent *e)
{
    return (char *)grad + e->in_grad * ms_dtype_size(r->sum_dtype);
}

#endif
