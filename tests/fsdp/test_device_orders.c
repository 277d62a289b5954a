/* Every order of streams that runtime/fsdp/exchange asks for is needed: left out, on a device that
 * runs things later (tests/fakedevice), some run comes out otherwise. */
#include "chain/chain.h"

typedef struct mutation {
    msi_stream_dep order;
    const char *name, *layout;
    chain chain;
} mutation;

/* Without ARRIVED, and with all others, no training that succeeds comes out otherwise: a backward
 * that ends joins all of its sums, its gradients cannot be read before, and a slot that is taken
 * again is REUSED after them. It is for a backward that fails: what its reductions wrote is then
 * read, or given back, without its end. */
static const mutation mutations[] = {
    {MSI_DEP_STEPPED, "stepped", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_RELEASED, "released", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_FILLED, "filled", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_USED, "used", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_GATHERED, "gathered", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_STEPPED, "stepped", "pull", {.strategy = MS_FSDP_FULL_SHARD}},
    /* in training other units' words imply it, as all gathering is in one stream */
    {MSI_DEP_RELEASED,
     "released",
     "pull",
     {.strategy = MS_FSDP_FULL_SHARD, .evaluates = true, .writes = true}},
    {MSI_DEP_FILLED, "filled", "pull", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_USED, "used", "pull", {.strategy = MS_FSDP_FULL_SHARD, .evaluates = true}},
    {MSI_DEP_GATHERED, "gathered", "pull", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_REUSED, "reused", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_READ, "read", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_WRITTEN, "written", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_READY, "ready", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_PREPARED, "prepared", "shared", {.strategy = MS_FSDP_FULL_SHARD, .adds = true}},
    {MSI_DEP_SUMMED, "summed", "shared", {.strategy = MS_FSDP_FULL_SHARD}},
    {MSI_DEP_REUSED, "reused by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
    {MSI_DEP_READ, "read by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
    {MSI_DEP_WRITTEN, "written by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
    {MSI_DEP_READY, "ready by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
    {MSI_DEP_PREPARED,
     "prepared by replicas",
     "shared",
     {.strategy = MS_FSDP_NO_SHARD, .adds = true}},
    {MSI_DEP_CHUNKED, "chunked by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
    {MSI_DEP_SUMMED, "summed by replicas", "shared", {.strategy = MS_FSDP_NO_SHARD}},
};

/* Seeds up to `most` until one run comes out otherwise; 0: none does. */
static int32_t noticed_by(const mutation *m, int32_t most)
{
    chain cpu = m->chain, c;
    int32_t seed = 0;

    cpu.world = 3;
    c = cpu;
    assert_ok(train_on(&cpu, 0, "shared"));
    atomic_store(&msi_stream_dep_omitted, m->order);
    do {
        seed++;
        if (train_on(&c, seed, m->layout) != MS_OK || c.hash != cpu.hash) {
            break;
        }
    } while (seed < most);
    atomic_store(&msi_stream_dep_omitted, MSI_DEP_ALL);
    return c.hash != cpu.hash ? seed : 0;
}

static void test_fsdp_device_orders__every_order_is_needed(void **state)
{
    const int32_t most = 2000;

#ifdef __SANITIZE_THREAD__
    skip(); /* what is left out makes races, and shall */
#endif
    for (int32_t i = 0; i < MSI_COUNT(mutations); i++) {
        const mutation *m = &mutations[i];
        const int32_t seed = noticed_by(m, most);

        print_message("%s, %s left out: seed %d notices\n", m->layout, m->name, (int)seed);
        if (seed == 0) {
            fail_msg("layout %s without '%s': none of %d seeds notices", m->layout, m->name,
                     (int)most);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fsdp_device_orders__every_order_is_needed),
    };

    if (!has_fake()) {
        print_message("skipped: no libmoonshard_fake.so\n");
        return 0;
    }
    return cmocka_run_group_tests_name("fsdp device orders", tests, NULL, NULL);
}
