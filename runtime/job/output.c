/* What ranks print, line by line, with the rank in front.
 *
 * A line that is written over, as bars of progress are, comes piece by piece: each ends in a
 * return, or has waited a moment. On a terminal so does any line without its end; elsewhere it
 * waits to be whole, since programs that print by blocks break theirs anywhere. What another rank
 * prints behind an open line begins a new one.
 *
 * A rank prints into a pipe; whole lines move into a queue of bounded size, and from there to where
 * the launcher prints. Of each pipe one piece is read in a round, so that a rank that never pauses
 * delays nobody. Nothing here waits: when nobody reads the launcher its queue fills, then
 * the ranks' pipes, and then the ranks wait in their prints as they would without a launcher; their
 * deaths and all signals are heard meanwhile. When a job has failed the launcher does not wait for
 * ever that somebody reads (supervise.c). When the launcher's reader has gone for good, the
 * ranks' pipes are closed, so that they meet what they would have met without a launcher. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PIECE = 8192,          /* taken of a pipe at once */
    LONGEST = 1024 * 1024, /* line that is printed as one */
    AROUND = 32,           /* what is put before and behind a line */
    MOMENT_MS = 50,        /* that a piece waits for its end */
    QUEUE = 64 * 1024      /* more while a line is longer */
};

typedef struct source source;

/* Where the launcher prints: its stdout or stderr. */
typedef struct sink {
    int32_t fd;
    bool own;    /* opened anew, so that it can be made non-blocking for nobody but us */
    bool always; /* a file: never blocks */
    bool pipe;
    bool terminal;
    const source *open; /* whose line stands last, without its end; NULL: all have theirs */
    bool over;          /* ... and will be written over */
    bool gone;          /* nobody will ever read */
    bool full;          /* had no room for a line of this round */
    int32_t turn;       /* source that comes first: the one that found no room last */
    int32_t lost;       /* errno of the first write that lost lines otherwise; 0: none has */
    bool written;       /* something was, in this round */
    int64_t looked_at;  /* when it was last asked whether somebody reads */
    int64_t unread_ns;  /* ... since when nobody has, while this process ran; 0: nothing waits */
    int left;           /* in the pipe, when last asked */
    int32_t n, room;
    char *
        bytes; /* (room), n of them waiting: at least the longest line that a source has room for */
} sink;

/* What a rank prints, until a line is whole. */
struct source {
    int32_t fd;  /* -1: closed */
    int32_t end; /* the rank's; -1: closed here */
    bool ended;  /* its rank has */
    bool over;   /* its line is written over */
    int64_t heard_at;
    int32_t lost; /* errno of the read that failed; 0: none has */
    int64_t left; /* bytes that count; INT64_MAX: all that come */
    int32_t n, room;
    char *line; /* (room) */
    char prefix[AROUND];
};

struct msi_output {
    int32_t n;
    bool told; /* that lines are missing */
    bool one;  /* stdout and stderr are the same: one sink, or lines would mix */
    sink sink[2];
    source source[]; /* (n, 2) */
};

static int32_t sink_index(const msi_output *o, int32_t i)
{
    return o->one ? 0 : i % 2;
}

/* -- sinks ------------------------------------------------------------------------------------- */

/* False: no memory. */
static bool widen(char **bytes, int32_t *room, int32_t wanted)
{
    if (*room >= wanted) {
        return true;
    }
    char *wider = realloc(*bytes, (size_t)wanted);

    if (wider != NULL) {
        *bytes = wider;
        *room = wanted;
    }
    return wider != NULL;
}

/* O_NONBLOCK belongs to the open file, which other processes may share: so open it once more. What
 * cannot be opened (a socket, a terminal of somebody else) is asked by poll before each write. */
static ms_status open_sink(sink *s, int32_t fd)
{
    struct stat st = {0};
    char path[32];
    int own = -1;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", (int)fd);
    s->always = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    s->pipe = S_ISFIFO(st.st_mode);
    s->looked_at = msi_now_ns();
    s->terminal = isatty(fd) != 0;
    if (!s->always) {
        own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    }
    s->own = own >= 0;
    s->fd = s->own ? own : fd;
    return widen(&s->bytes, &s->room, QUEUE)
               ? MS_OK
               : MS_FAIL(MS_OUT_OF_MEMORY, "no memory for what ranks print");
}

static bool can_write(const sink *s)
{
    struct pollfd fd = {.fd = s->fd, .events = POLLOUT};

    return s->own || s->always || poll(&fd, 1, 0) == 1;
}

/* Of `n` bytes as many whole lines as are written in one piece, so that lines of two launchers do
 * not mix. */
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
        int32_t piece = piece_of(s->bytes + at, s->n - at);
        ssize_t done = write(s->fd, s->bytes + at, (size_t)piece);

        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0 && errno == EAGAIN) {
            break;
        }
        if (done < 0) { /* a full disk loses this piece, a closed pipe everything */
            s->gone = errno == EPIPE || errno == EBADF;
            s->lost = s->lost == 0 && !s->gone ? errno : s->lost;
            done = s->gone ? s->n - at : piece;
        }
        at += (int32_t)done;
    }
    memmove(s->bytes, s->bytes + at, (size_t)(s->n - at));
    s->n -= at;
    s->written = s->written || at > 0;
}

/* Has somebody read since the last look? Who does makes room for what we write; in a full pipe only
 * once he has read a page of it, so what is left there is asked besides. */
static bool is_read(sink *s)
{
    const int before = s->left;

    return (s->pipe && ioctl(s->fd, FIONREAD, &s->left) == 0 && s->left < before) || s->written;
}

/* Count the time in which nobody has read, once a round. */
static void watch_reader(sink *s)
{
    const int64_t now = msi_now_ns(), since = msi_looked_ns(now - s->looked_at);

    s->unread_ns = s->n == 0 || is_read(s) ? 0 : s->unread_ns + since;
    s->looked_at = now;
    s->written = false;
}

static void append(sink *to, const char *bytes, size_t n)
{
    memcpy(to->bytes + to->n, bytes, n);
    to->n += (int32_t)n;
}

static void end_line(sink *to)
{
    if (to->open != NULL) {
        append(to, "\n", 1);
        to->open = NULL;
    }
}

/* The first whose pipe could not be read, or NULL. */
static const source *unread(const msi_output *o)
{
    for (int32_t i = 0; i < 2 * o->n; i++) {
        if (o->source[i].lost != 0) {
            return &o->source[i];
        }
    }
    return NULL;
}

/* Say on stderr that lines are missing; not on what has failed itself. */
static void tell_loss(msi_output *o)
{
    sink *err = &o->sink[sink_index(o, 1)];
    const source *from = unread(o);
    int32_t error = from != NULL ? from->lost : err != &o->sink[0] ? o->sink[0].lost : 0;
    char what[64] = "write to stdout";

    if (o->told || error == 0 || err->n + PIECE > err->room) {
        return;
    }
    if (from != NULL) {
        snprintf(what, sizeof(what), "read what rank %d prints", (int)((from - o->source) / 2));
    }
    o->told = true;
    end_line(err);
    err->n +=
        snprintf(err->bytes + err->n, PIECE,
                 "moonshard: lines of the ranks are lost: cannot %s: %s\n", what, strerror(error));
}

/* -- lines ------------------------------------------------------------------------------------- */

static bool has_room(sink *to, int32_t n)
{
    if (to->n + n + AROUND > to->room) {
        flush_sink(to);
    }
    to->full = to->n + n + AROUND > to->room;
    return !to->full;
}

/* Move a piece into the sink's queue, and behind it `end`. False: no room for now. */
static bool put_piece(sink *to, source *from, const char *piece, int32_t n, const char *end)
{
    const bool own = to->open == from, line = piece[n - 1] == '\n', over = piece[n - 1] == '\r';
    const bool bare = n == 1 && (over || (own && line));

    if (!has_room(to, n)) {
        return false;
    }
    if (!own) {
        end_line(to);
    }
    if (!bare && !(own && !to->over)) {
        append(to, from->prefix, strlen(from->prefix));
    }
    append(to, piece, (size_t)n);
    append(to, end, strlen(end));
    from->over = over || (from->over && !line && end[0] == '\0');
    to->over = over;
    to->open = line || end[0] != '\0' || (bare && !own) ? NULL : from;
    return true;
}

static void close_fd(int32_t *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

/* Bytes of the piece from `at` on with its end, 0: it has none yet. */
static int32_t next_piece(const source *s, int32_t at)
{
    const char *piece = s->line + at;
    size_t left = (size_t)(s->n - at);
    const char *line = memchr(piece, '\n', left);
    const char *over = memchr(piece, '\r', line != NULL ? (size_t)(line - piece) : left);

    if (over != NULL && over + 1 != line) {
        return (int32_t)(over - piece) + 1;
    }
    return line != NULL ? (int32_t)(line - piece) + 1 : 0;
}

/* What has no end gets this one, or stays: NULL. */
static void put_pieces(sink *to, source *from, const char *end)
{
    int32_t at = 0;

    while (at < from->n) {
        int32_t n = next_piece(from, at);
        const bool ends = n > 0;

        n = ends ? n : from->n - at;
        if ((!ends && end == NULL) || !put_piece(to, from, from->line + at, n, ends ? "" : end)) {
            break;
        }
        at += n;
    }
    memmove(from->line, from->line + at, (size_t)(from->n - at));
    from->n -= at;
}

/* Let a line go on that fills all there is. False: it is too long. */
static bool make_room(sink *to, source *from)
{
    int32_t wanted = 2 * from->room;

    return from->n < from->room ||
           (wanted <= LONGEST && widen(&to->bytes, &to->room, wanted + AROUND) &&
            widen(&from->line, &from->room, wanted));
}

/* Take a piece of what stands in the pipe. False: nothing more, or not for now. */
static bool read_piece(source *s)
{
    int64_t room = s->room - s->n < PIECE ? s->room - s->n : PIECE;
    ssize_t got = read(s->fd, s->line + s->n, (size_t)(s->left < room ? s->left : room));

    if (got > 0) {
        s->n += (int32_t)got;
        s->left -= got;
        s->heard_at = msi_now_ns();
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
        s->lost = got == 0 ? 0 : errno;
        close_fd(&s->fd);
    }
    return got > 0 || (got < 0 && errno == EINTR);
}

/* Shall what has no end go out? */
static bool has_waited(const sink *to, const source *from)
{
    return (from->over || to->terminal) && msi_now_ns() - from->heard_at >= MOMENT_MS * 1000000LL;
}

/* The lines of one read. True: there may be more at once. */
static bool move_source(sink *to, source *from)
{
    if (to->gone) {
        close_fd(&from->fd);
        from->n = 0;
        return false;
    }
    if (next_piece(from, 0) > 0) { /* left by the round that found no room */
        put_pieces(to, from, NULL);
        return true;
    }
    if (!make_room(to, from)) {
        if (put_piece(to, from, from->line, from->n, " ...\n")) { /* the rest follows */
            from->n = 0;
        }
        return true;
    }
    bool dry = from->fd < 0 || !read_piece(from), last = dry && (from->ended || from->fd < 0);

    put_pieces(to, from, last ? "\n" : dry && has_waited(to, from) ? "" : NULL);
    if (last && from->n == 0 && to->open == from && has_room(to, 0)) {
        end_line(to);
    }
    return !dry || to->full;
}

/* A round of all that print into this sink, as far as it has room. True: there may be more at once.
 */
static bool move_sources(msi_output *o, sink *to)
{
    int32_t first = to->turn;
    bool more = false;

    to->full = false;
    for (int32_t k = 0; k < 2 * o->n && !to->full; k++) {
        int32_t i = (first + k) % (2 * o->n);

        if (&o->sink[sink_index(o, i)] == to) {
            more = move_source(to, &o->source[i]) || more;
            to->turn = to->full ? i : to->turn;
        }
    }
    return more;
}

/* -- for the launcher -------------------------------------------------------------------------- */

static ms_status open_source(source *s, int32_t rank)
{
    int fds[2];

    if (!widen(&s->line, &s->room, PIECE)) {
        return MS_FAIL(MS_OUT_OF_MEMORY, "no memory for what rank %d prints", (int)rank);
    }
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return msi_fail_call("pipe", errno, "cannot take what rank %d prints", (int)rank);
    }
    snprintf(s->prefix, sizeof(s->prefix), "[rank %d] ", (int)rank);
    s->fd = fds[0];
    s->end = fds[1];
    s->left = INT64_MAX;
    return fcntl(s->fd, F_SETFL, O_NONBLOCK) == 0
               ? MS_OK
               : msi_fail_call("fcntl", errno, "cannot take what rank %d prints", (int)rank);
}

ms_status msi_output_new(msi_output **out, int32_t n)
{
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
    for (int32_t i = 0; i < 2 && status == MS_OK; i++) {
        status = open_sink(&o->sink[i], STDOUT_FILENO + i);
    }
    for (int32_t i = 0; i < 2 * n && status == MS_OK; i++) {
        status = open_source(&o->source[i], i / 2);
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
        free(o->source[i].line);
    }
    for (int32_t i = 0; i < 2; i++) {
        if (o->sink[i].own) {
            close(o->sink[i].fd);
        }
        free(o->sink[i].bytes);
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
        source *s = &o->source[i];
        int there = 0;

        if (s->fd >= 0 && ioctl(s->fd, FIONREAD, &there) != 0) {
            s->lost = errno;
            close_fd(&s->fd);
        }
        s->left = there;
    }
    o->sink[0].unread_ns = o->sink[1].unread_ns = 0;
}

bool msi_output_move(msi_output *o)
{
    bool more = false;

    for (int32_t stream = 0; stream < 2; stream++) {
        more = move_sources(o, &o->sink[stream]) || more;
        flush_sink(&o->sink[stream]);
        watch_reader(&o->sink[stream]);
        tell_loss(o); /* stderr comes second */
        more = more || o->sink[stream].n > 0;
    }
    return more;
}

bool msi_output_lost(const msi_output *o)
{
    return o->sink[0].lost != 0 || o->sink[1].lost != 0 || unread(o) != NULL;
}

int64_t msi_output_unread_ns(const msi_output *o)
{
    const int64_t out = o->sink[0].unread_ns, err = o->sink[1].unread_ns;

    return out > err ? out : err;
}

nfds_t msi_output_poll(const msi_output *o, struct pollfd *fds)
{
    nfds_t n = 0;

    for (int32_t i = 0; i < 2 * o->n; i++) {
        if (o->source[i].fd >= 0 && !o->sink[sink_index(o, i)].full) {
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
