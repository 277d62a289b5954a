/* The ranks' output, line by line, with the rank as prefix.
 *
 * A rank prints into a pipe. Whole lines move to a bounded queue, and from there to the launcher's
 * stdout or stderr, without waiting here. If nobody reads the launcher, its queue fills, then the
 * pipes, and then ranks block in their prints, as without a launcher. If the launcher's reader has
 * closed, the ranks' pipes are closed. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LINE = 1024 * 1024, /* longer lines are printed in pieces */
    AROUND = 48,        /* prefix and end of a line */
    QUEUE = 64 * 1024,  /* plus one longer line */
    PIECE = 8192,       /* read per pipe and round, for fairness */
    PIPE = 64 * 1024    /* capacity of a pipe */
};

/* A destination of the launcher. */
typedef struct sink {
    int32_t fd;
    bool gone;        /* the reader has closed */
    int32_t lost;     /* errno of the first lost write; 0: none */
    int64_t moved_at; /* last time the queue was empty or moved */
    int32_t turn;     /* first source of the next round */
    bool full;        /* no space for a line of this round */
    int32_t n;
    char bytes[LINE + AROUND];
} sink;

/* One stream of a rank. */
typedef struct source {
    int32_t fd;   /* -1: closed */
    int32_t end;  /* rank's end; -1: closed here */
    bool ended;   /* its rank has ended */
    int64_t left; /* bytes to read after the end */
    int32_t n;
    char prefix[AROUND - 8], line[LINE];
} source;

struct msi_output {
    int32_t n;
    bool one; /* stdout and stderr are one file: share a sink to keep lines whole */
    sink sink[2];
    source source[]; /* (n, 2) */
};

static sink *sink_of(msi_output *o, int32_t i)
{
    return &o->sink[o->one ? 0 : i % 2];
}

static void close_fd(int32_t *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

/* A writable pipe takes at least PIPE_BUF bytes without blocking. */
static bool can_write(const sink *s)
{
    struct pollfd fd = {.fd = s->fd, .events = POLLOUT};

    return poll(&fd, 1, 0) == 1;
}

/* Whole lines up to PIPE_BUF bytes are one write, so that two launchers' lines do not mix. */
static int32_t piece_of(const char *bytes, int32_t n)
{
    if (n <= PIPE_BUF) {
        return n;
    }
    const char *end = memrchr(bytes, '\n', PIPE_BUF);

    return end != NULL ? (int32_t)(end - bytes) + 1 : PIPE_BUF;
}

static void flush_sink(sink *s)
{
    int32_t at = 0;

    while (at < s->n && can_write(s)) {
        const int32_t piece = piece_of(s->bytes + at, s->n - at);
        ssize_t done = write(s->fd, s->bytes + at, (size_t)piece);

        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0 && errno == EAGAIN) {
            break;
        }
        if (done < 0) { /* a full disk loses this piece, a closed pipe all */
            s->gone = errno == EPIPE || errno == EBADF;
            s->lost = s->lost == 0 && !s->gone ? errno : s->lost;
            done = s->gone ? s->n - at : piece;
        }
        at += (int32_t)done;
    }
    memmove(s->bytes, s->bytes + at, (size_t)(s->n - at));
    s->n -= at;
    if (at > 0 || s->n == 0) {
        s->moved_at = msi_now_ns();
    }
}

static void append(sink *to, const char *bytes, size_t n)
{
    memcpy(to->bytes + to->n, bytes, n);
    to->n += (int32_t)n;
}

/* Move a line to the queue. False: no space yet. */
static bool put_line(sink *to, const source *from, const char *line, int32_t n, const char *end)
{
    if (to->n + n + AROUND > QUEUE) {
        flush_sink(to);
    }
    to->full = to->n > 0 && to->n + n + AROUND > QUEUE;
    if (to->full) {
        return false;
    }
    append(to, from->prefix, strlen(from->prefix));
    append(to, line, (size_t)n);
    append(to, end, strlen(end));
    return true;
}

/* Length of the line at `text` with its end; 0: unfinished. A carriage return (progress bars) ends
 * a line, too. */
static int32_t line_of(const char *text, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (text[i] == '\n' || (text[i] == '\r' && (i + 1 == n || text[i + 1] != '\n'))) {
            return i + 1;
        }
    }
    return 0;
}

/* Keeps unfinished lines, unless last or too long. */
static void put_lines(sink *to, source *from, bool last)
{
    int32_t at = 0;

    while (at < from->n) {
        const int32_t n = line_of(from->line + at, from->n - at), left = from->n - at;
        const bool cut = n == 0 && left == LINE;

        if (n == 0 && !last && !cut) {
            break;
        }
        const char *end = n > 0 ? "" : cut ? " ...\n" : "\n";

        if (!put_line(to, from, from->line + at, n > 0 ? n : left, end)) {
            break;
        }
        at += n > 0 ? n : left;
    }
    memmove(from->line, from->line + at, (size_t)(from->n - at));
    from->n -= at;
}

/* Read some from the pipe. False: empty. */
static bool read_piece(source *s)
{
    int64_t room = LINE - s->n < PIECE ? LINE - s->n : PIECE;
    ssize_t got;

    do {
        got = read(s->fd, s->line + s->n, (size_t)(s->left < room ? s->left : room));
    } while (got < 0 && errno == EINTR);

    if (got > 0) {
        s->n += (int32_t)got;
        s->left -= got;
    } else if (got == 0 || errno != EAGAIN) {
        close_fd(&s->fd);
    }
    return got > 0;
}

/* Move the lines of one read. True: there may be more. */
static bool move_source(sink *to, source *from)
{
    if (to->gone) {
        close_fd(&from->fd);
        from->n = 0;
        return false;
    }
    const bool waits = line_of(from->line, from->n) > 0 || from->n == LINE; /* for space */
    const bool got = from->fd >= 0 && !waits && read_piece(from);

    put_lines(to, from, !waits && !got && (from->ended || from->fd < 0));
    return got || waits;
}

/* One round over the sources of this sink, while it has space. */
static bool move_sources(msi_output *o, sink *to)
{
    const int32_t first = to->turn;
    bool more = false;

    to->full = false;
    for (int32_t k = 0; k < 2 * o->n && !to->full; k++) {
        const int32_t i = (first + k) % (2 * o->n);

        if (sink_of(o, i) == to) {
            more = move_source(to, &o->source[i]) || more;
            to->turn = to->full ? i : to->turn;
        }
    }
    return more;
}

/* -- for the launcher -------------------------------------------------------------------------- */

static ms_status open_source(source *s, const msi_block *b, int32_t rank)
{
    char host[16] = "";
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0) {
        return msi_fail_call("pipe", errno, "cannot take what rank %d prints", (int)rank);
    }
    if (b->n_hosts > 1) {
        snprintf(host, sizeof(host), ", host %d", (int)b->host);
    }
    snprintf(s->prefix, sizeof(s->prefix), "[rank %d%s] ", (int)rank, host);
    s->fd = fds[0];
    s->end = fds[1];
    s->left = INT64_MAX;
    return fcntl(s->fd, F_SETFL, O_NONBLOCK) == 0
               ? MS_OK
               : msi_fail_call("fcntl", errno, "cannot take what rank %d prints", (int)rank);
}

ms_status msi_output_new(msi_output **out, const msi_block *b)
{
    const int32_t n = b->n_local;
    msi_output *o = calloc(1, sizeof(*o) + 2 * (size_t)n * sizeof(o->source[0]));
    ms_status status = MS_OK;
    struct stat st[2];

    *out = NULL;
    if (o == NULL) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for the output of %d ranks", (int)n);
    }
    o->n = n;
    o->one = fstat(STDOUT_FILENO, &st[0]) == 0 && fstat(STDERR_FILENO, &st[1]) == 0 &&
             st[0].st_dev == st[1].st_dev && st[0].st_ino == st[1].st_ino;
    for (int32_t i = 0; i < 2 * n; i++) {
        o->source[i].fd = o->source[i].end = -1;
    }
    for (int32_t i = 0; i < 2; i++) {
        o->sink[i].fd = STDOUT_FILENO + i;
        o->sink[i].moved_at = msi_now_ns();
    }
    for (int32_t i = 0; i < 2 * n && status == MS_OK; i++) {
        status = open_source(&o->source[i], b, b->first + i / 2);
    }
    if (status != MS_OK) {
        msi_output_free(o);
        return status;
    }
    *out = o;
    return MS_OK;
}

void msi_output_free(msi_output *o)
{
    if (o == NULL) {
        return;
    }
    for (int32_t i = 0; i < 2 * o->n; i++) {
        close_fd(&o->source[i].fd);
        close_fd(&o->source[i].end);
    }
    free(o);
}

bool msi_output_enter(const msi_output *o, int32_t rank)
{
    return dup2(o->source[2 * rank].end, STDOUT_FILENO) >= 0 &&
           dup2(o->source[2 * rank + 1].end, STDERR_FILENO) >= 0;
}

void msi_output_started(msi_output *o)
{
    for (int32_t i = 0; i < 2 * o->n; i++) {
        close_fd(&o->source[i].end);
    }
}

void msi_output_end(msi_output *o, int32_t rank)
{
    o->source[2 * rank].ended = o->source[2 * rank + 1].ended = true;
}

void msi_output_finish(msi_output *o)
{
    for (int32_t i = 0; i < 2 * o->n; i++) {
        o->source[i].ended = true;
        o->source[i].left = PIPE;
    }
    o->sink[0].moved_at = o->sink[1].moved_at = msi_now_ns();
}

bool msi_output_move(msi_output *o)
{
    bool more = false;

    for (int32_t stream = 0; stream < 2; stream++) {
        more = move_sources(o, &o->sink[stream]) || more;
        flush_sink(&o->sink[stream]);
        more = more || o->sink[stream].n > 0;
    }
    return more;
}

int32_t msi_output_lost(const msi_output *o)
{
    return o->sink[0].lost != 0 ? o->sink[0].lost : o->sink[1].lost;
}

int64_t msi_output_stuck_ns(const msi_output *o)
{
    const int64_t out = o->sink[0].moved_at, err = o->sink[1].moved_at;

    return msi_now_ns() - (out < err ? out : err);
}

nfds_t msi_output_poll(msi_output *o, struct pollfd *fds)
{
    nfds_t n = 0;

    for (int32_t i = 0; i < 2 * o->n; i++) {
        if (o->source[i].fd >= 0 && !sink_of(o, i)->full) {
            fds[n++] = (struct pollfd){.fd = o->source[i].fd, .events = POLLIN};
        }
    }
    for (int32_t stream = 0; stream < 2; stream++) {
        if (o->sink[stream].n > 0) {
            fds[n++] = (struct pollfd){.fd = o->sink[stream].fd, .events = POLLOUT};
        }
    }
    return n;
}
