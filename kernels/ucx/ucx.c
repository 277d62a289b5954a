/* Data between hosts by UCX: libmoonshard_ucx.so, opened for MS_NET=ucx.
 *
 * Endpoints are in UCX's mode without error handling, since launchers detect ranks that have ended;
 * the other mode takes 1.7 times as long over TCP. */
#include "engine.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

enum { STEPS = 64 }; /* of one progress(), after which the caller serves its sockets */

typedef struct ucx {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
} ucx;

/* [Note: the process ends] exit() runs the destructors of UCX's libraries, and this one before
 * them, while the thread of a rank that has not closed its engine still runs. */
static pthread_mutex_t in_use = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static bool ended;

__attribute__((destructor)) static void end(void)
{
    pthread_mutex_lock(&in_use);
    ended = true;
    pthread_mutex_unlock(&in_use);
}

static bool enter(void)
{
    pthread_mutex_lock(&in_use);
    if (ended) {
        pthread_mutex_unlock(&in_use);
    }
    return !ended;
}

static void leave(void)
{
    pthread_mutex_unlock(&in_use);
}

static bool is_ok(ucs_status_t status, const char *what, char *error)
{
    if (status != UCS_OK) {
        snprintf(error, MSI_ENGINE_ERROR, "%s: %s", what, ucs_status_string(status));
    }
    return status == UCS_OK;
}

/* A fork may copy `in_use` while that thread has it. The copy of the process uses no engine. */
static void forked(void)
{
    in_use = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    ended = true;
}

/* -- life -------------------------------------------------------------------------------------- */

static void destroy(ucx *u)
{
    if (u->address != NULL) {
        ucp_worker_release_address(u->worker, u->address);
    }
    if (u->worker != NULL) {
        ucp_worker_destroy(u->worker);
    }
    if (u->context != NULL) {
        ucp_cleanup(u->context);
    }
    free(u);
}

/* UCX prints lines for connections of ranks that have ended, and handles the signals of faults,
 * which launchers report. */
static void be_quiet(void)
{
    static const int faults[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP};

    if (getenv("UCX_LOG_LEVEL") == NULL) {
        (void)ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    }
    for (size_t i = 0;
         i < sizeof(faults) / sizeof(faults[0]) && getenv("UCX_HANDLE_ERRORS") == NULL; i++) {
        ucs_debug_disable_signal(faults[i]);
    }
}

/* Without shared memory, unless UCX_TLS asks for it: ranks of one host do not use an engine, and a
 * rank that reads the memory of one that has ended is aborted by UCX. */
static ucs_status_t open_context(ucp_context_h *out, const ucp_params_t *params)
{
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);

    if (status != UCS_OK) {
        return status;
    }
    if (getenv("UCX_TLS") == NULL) {
        status = ucp_config_modify(config, "TLS", "^sm");
    }
    status = status == UCS_OK ? ucp_init(params, config, out) : status;
    ucp_config_release(config);
    return status;
}

static bool open_worker(ucx *u, char *error)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP};
    const ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE |
                                                      UCP_WORKER_PARAM_FIELD_FLAGS,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
                                        .flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK};

    return is_ok(open_context(&u->context, &params), "ucp_init", error) &&
           is_ok(ucp_worker_create(u->context, &worker, &u->worker), "ucp_worker_create", error);
}

static void prepare(void)
{
    be_quiet();
    pthread_atfork(NULL, NULL, forked);
}

static pthread_once_t prepared = PTHREAD_ONCE_INIT;

static bool open_engine(msi_engine *out, char *error)
{
    ucx *u = calloc(1, sizeof(*u));
    size_t nbytes = 0;

    if (u == NULL) {
        snprintf(error, MSI_ENGINE_ERROR, "no memory");
        return false;
    }
    pthread_once(&prepared, prepare);
    if (!open_worker(u, error) ||
        !is_ok(ucp_worker_get_address(u->worker, &u->address, &nbytes), "ucp_worker_get_address",
               error) ||
        !is_ok(ucp_worker_get_efd(u->worker, &out->fd), "ucp_worker_get_efd", error)) {
        destroy(u);
        return false;
    }
    out->state = u;
    out->address = u->address;
    out->address_nbytes = (uint32_t)nbytes;
    return true;
}

static void close_engine(void *state)
{
    if (enter()) {
        destroy(state);
        leave();
    }
}

static bool connect_peer(void *state, void **peer, const void *address, char *error)
{
    const ucx *u = state;
    const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                                    .address = address};
    ucp_ep_h ep = NULL;
    bool ok = false;

    if (enter()) {
        ok = is_ok(ucp_ep_create(u->worker, &params, &ep), "ucp_ep_create", error);
        leave();
    }
    *peer = ep;
    return ok;
}

/* -- transfers --------------------------------------------------------------------------------- */

static void complete(msi_engine_call *call, ucs_status_t status)
{
    call->done(call, status == UCS_OK ? NULL : ucs_status_string(status));
}

static void sent(void *request, ucs_status_t status, void *call)
{
    complete(call, status);
    ucp_request_free(request);
}

static void received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                     void *call)
{
    complete(call, status);
    ucp_request_free(request);
}

/* A transfer may be complete when it is posted; then no callback is called. */
static void posted(ucs_status_ptr_t request, msi_engine_call *call)
{
    if (!UCS_PTR_IS_PTR(request)) {
        complete(call, UCS_PTR_STATUS(request));
    }
}

static void send_data(void *state, void *peer, uint64_t tag, const void *data, int64_t nbytes,
                      msi_engine_call *call)
{
    const ucp_request_param_t param = {.op_attr_mask =
                                           UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.send = sent,
                                       .user_data = call};

    if (enter()) {
        posted(ucp_tag_send_nbx(peer, data, (size_t)nbytes, tag, &param), call);
        leave();
    }
}

static void receive_data(void *state, uint64_t tag, void *data, int64_t nbytes,
                         msi_engine_call *call)
{
    const ucx *u = state;
    const ucp_request_param_t param = {.op_attr_mask =
                                           UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.recv = received,
                                       .user_data = call};

    if (enter()) {
        posted(ucp_tag_recv_nbx(u->worker, data, (size_t)nbytes, tag, UINT64_MAX, &param), call);
        leave();
    }
}

static bool progress(void *state)
{
    const ucx *u = state;
    bool idle = false;

    if (!enter()) {
        return true;
    }
    for (int32_t step = 0; step < STEPS && !idle; step++) { /* arming fails while events wait */
        idle = ucp_worker_progress(u->worker) == 0 && ucp_worker_arm(u->worker) == UCS_OK;
    }
    leave();
    return idle;
}

static const msi_engine_ops ops = {.version = MSI_ENGINE_VERSION,
                                   .kind = "ucx",
                                   .open = open_engine,
                                   .connect = connect_peer,
                                   .send = send_data,
                                   .receive = receive_data,
                                   .progress = progress,
                                   .close = close_engine};

__attribute__((visibility("default"))) const msi_engine_ops *msi_engine_plugin(void)
{
    return &ops;
}
