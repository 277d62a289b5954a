/* The trace of the device 'plan': what a rank computes and communicates, in program order. A model
 * of time is computed from it. */
#ifndef MOONSHARD_PLAN_H
#define MOONSHARD_PLAN_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Kinds of events. */
enum {
    MS_PLAN_COMPUTE = 0,     /**< kernels and products; neighbours are added up */
    MS_PLAN_FORWARD = 1,     /**< the forward of a unit begins */
    MS_PLAN_FORWARD_END = 2, /**< and ends */
    MS_PLAN_BACKWARD = 3,    /**< backward reaches a unit */
    MS_PLAN_GATHER = 4,      /**< the gather of a unit's parameters is enqueued */
    MS_PLAN_UNSHARD = 5,     /**< later work of the rank needs the gathered parameters */
    MS_PLAN_RESHARD = 6,     /**< the unit's slot is released */
    MS_PLAN_REDUCE = 7,      /**< the reduction of a unit's gradients is enqueued */
    MS_PLAN_COLLECTIVE = 8   /**< a collective on a tensor, for which the rank waits */
};

/** One event. Fields that do not belong to its kind are 0. */
typedef struct ms_plan_event {
    int32_t kind;     /**< MS_PLAN_* */
    int32_t slot;     /**< gather: the slot's number; -1: none */
    int32_t ranks;    /**< that take part: of a gather the unit's shards, else the group */
    int32_t shards;   /**< reduce: ranks among which the unit is sharded; 1: replicas */
    int32_t first;    /**< rank in the job of the first that takes part; reduce: of its shards */
    int32_t step;     /**< distance in the job of one that takes part from the next, likewise */
    int32_t across;   /**< reduce: distance of one replica of a shard from the next */
    double flops;     /**< compute: operations of products, convolutions and attention */
    double targets;   /**< compute: rows of cross-entropy losses that are differentiated */
    double nbytes;    /**< gather, reduce: of all of the unit, with padding; collective: of the
                           tensor that this rank passes (all_gather) or receives (reduce_scatter);
                           compute: read and written by kernels other than those of `flops` */
    double live;      /**< bytes that the rank holds, at most during the event */
    const char *name; /**< of the unit or the collective; NULL: compute */
} ms_plan_event;

/** Begin a trace: drop earlier events, and add those from now on. MS_RUNTIME_ERROR if the device
 * 'plan' is not open. */
MS_API ms_status ms_plan_start(void);

/** The events so far, `*n` of them. Valid until the next call into the runtime.
 * MS_OUT_OF_MEMORY if some were lost; MS_RUNTIME_ERROR without a trace. */
MS_API ms_status ms_plan_events(const ms_plan_event **out, int64_t *n);

#ifdef __cplusplus
}
#endif
#endif
