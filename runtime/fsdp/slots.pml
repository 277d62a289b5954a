/* SPIN models of the slot protocol (fsdp.h, [Note: slot protocol]).
 *
 *   ./dev model      or: spin -DGRADIENTS -a slots.pml && gcc -O2 -o pan pan.c && ./pan -m100000
 *
 * Two ranks run one program of N calls; whoever comes to a call first chooses it, so that all
 * programs are tried, under all interleavings. Waits block until what they wait for is there or the
 * queue has work, as msi_queue_wait() does.
 *
 * Parameters: units 0 and 1 share a ring of two slots, unit 2 has a home slot and is kept unsharded.
 * Calls use a unit, perhaps with an early publish of the next (which may then be skipped), write the
 * masters (an optimizer's step: what was published and not used is dropped), or fail on both ranks
 * (reset: everything is dropped). Gradients: sharded ones are reduced from the slots of all ranks,
 * whole ones (NO_SHARD) in two phases; calls write one, wait for all, or fail.
 *
 * Checked: no deadlock (no invalid end state); a slot never changes under a reader, and never mixes
 * values from before and after a write; a gradient is never overwritten before all have read it; and
 * what a reset leaves half done is never taken for a result. */
#define R 2
#ifndef N
#define N 4
#endif

#define AT(s, q) ((s) * R + (q))

byte call[N]; /* the program */
byte n_calls;

#ifndef GRADIENTS

#define S 3
#define U 3
#define HOME 2 /* unit and slot */
#define STEP 6 /* calls: 0 to 2 use a unit, 3 to 5 use it and publish the next */
#define RESET 7

byte filled[S * R], released[S * R];                   /* words, by slot and rank */
byte content_generation[S * R], content_written[S * R]; /* of rank q's extents in slot s */

#define MAY_FILL(x) \
  (released[AT(slot[x], 0)] + 1 >= generation[x] && released[AT(slot[x], 1)] + 1 >= generation[x])
#define ALL_FILLED(x) \
  (filled[AT(slot[x], 0)] >= generation[x] && filled[AT(slot[x], 1)] >= generation[x])
#define CAN_FILL(x) (queued[x] && MAY_FILL(x))
#define WORK (CAN_FILL(0) || CAN_FILL(1) || CAN_FILL(2))

inline fill(x) {
  content_generation[AT(slot[x], me)] = generation[x];
  content_written[AT(slot[x], me)] = written;
  queued[x] = false;
  filled[AT(slot[x], me)] = generation[x]
}

inline run_queue() {
  do
  :: CAN_FILL(0) -> fill(0)
  :: CAN_FILL(1) -> fill(1)
  :: CAN_FILL(2) -> fill(2)
  :: !WORK -> break
  od
}

/* The slot follows from the program: the free one of the ring that became free first. */
inline publish(x) {
  d_step {
    if
    :: x == HOME -> slot[x] = HOME
    :: x != HOME && held[0] -> slot[x] = 1
    :: x != HOME && held[1] -> slot[x] = 0
    :: else -> slot[x] = oldest
    fi;
    assert(!held[slot[x]]);
    held[slot[x]] = true;
    latest[slot[x]]++;
    generation[x] = latest[slot[x]];
    named[x] = written;
    state[x] = 1;
    queued[x] = true
  }
  run_queue()
}

/* Needs nobody: a publish still queued is dropped. */
inline reshard(x) {
  if
  :: queued[x] -> queued[x] = false; filled[AT(slot[x], me)] = generation[x]
  :: else
  fi;
  released[AT(slot[x], me)] = generation[x];
  d_step {
    held[slot[x]] = false;
    if
    :: slot[x] != HOME && held[1 - slot[x]] -> oldest = slot[x]
    :: slot[x] != HOME && !held[1 - slot[x]] -> oldest = 1 - slot[x]
    :: else
    fi;
    state[x] = 0
  }
}

inline read(x) {
  assert(content_generation[AT(slot[x], 0)] == generation[x] && content_written[AT(slot[x], 0)] == named[x]);
  assert(content_generation[AT(slot[x], 1)] == generation[x] && content_written[AT(slot[x], 1)] == named[x])
}

inline use(x, next) {
  if
  :: state[x] == 2 && named[x] != written -> reshard(x)
  :: else
  fi;
  if
  :: state[x] == 0 -> publish(x)
  :: else
  fi;
  do
  :: ALL_FILLED(x) -> break
  :: !ALL_FILLED(x) && WORK -> run_queue()
  od;
  state[x] = 2;
  if
  :: next < U && state[next] == 0 && (next == HOME || !held[0] || !held[1]) -> publish(next)
  :: else
  fi;
  read(x);
  read(x); /* later: still the same */
  assert(named[x] == written);
  if
  :: x != HOME -> reshard(x)
  :: else
  fi;
  run_queue()
}

inline choose() {
  if
  :: call[at] = 0 :: call[at] = 1 :: call[at] = 2 :: call[at] = 3 :: call[at] = 4 :: call[at] = 5
  :: call[at] = STEP :: call[at] = RESET
  fi
}

proctype rank(byte me) {
  byte state[U]; /* 0 sharded, 1 published, 2 unsharded */
  byte slot[U], generation[U], named[U], latest[S];
  bool queued[U], held[S];
  byte oldest = 0, written = 0, at = 0, x;

  do
  :: at < N ->
     atomic { if :: at == n_calls -> choose(); n_calls++ :: else fi }
     if
     :: call[at] < U -> use(call[at], U)
     :: call[at] >= U && call[at] < STEP -> use(call[at] - U, (call[at] - U + 1) % U)
     :: call[at] == STEP ->
        x = 0;
        do
        :: x < U && state[x] == 1 -> reshard(x); x++
        :: x < U && state[x] != 1 -> x++
        :: x == U -> break
        od;
        written++
     :: call[at] == RESET ->
        x = 0;
        do
        :: x < U && state[x] != 0 -> reshard(x); x++
        :: x < U && state[x] == 0 -> x++
        :: x == U -> break
        od
     fi;
     at++
  :: else -> break
  od
}

#else

#define G 2 /* slots per rank */
#define SHARDED 1
#define WHOLE 2 /* as a task: its chunk is to be reduced */
#define COPY 3  /* its chunk is reduced, the others' are to be copied */
#define FINISH 4
#define RESET 5
#define TORN 6 /* reset between taking a slot and announcing what is in it */

byte ready[G * R], reduced[G * R], have_read[G * R]; /* words, by slot and rank */
byte gradient[G * R], chunk[G * R];                  /* generations in rank q's slot */

#define ALL(word, s) (word[AT(s, 0)] >= generation[s] && word[AT(s, 1)] >= generation[s])
#define ALL_READ(s) (have_read[AT(s, 0)] + 1 >= generation[s] && have_read[AT(s, 1)] + 1 >= generation[s])
#define CAN(s) (((task[s] == SHARDED || task[s] == WHOLE) && ALL(ready, s)) || (task[s] == COPY && ALL(reduced, s)))
#define WORK (CAN(0) || CAN(1))

inline step(s) {
  if
  :: task[s] == COPY -> /* a peer that was reset owes a chunk: this rank will be reset too */
     garbage = garbage || chunk[AT(s, 0)] != generation[s] || chunk[AT(s, 1)] != generation[s];
     task[s] = 0;
     have_read[AT(s, me)] = generation[s]
  :: task[s] != COPY ->
     assert(gradient[AT(s, 0)] == generation[s]);
     assert(gradient[AT(s, 1)] == generation[s]);
     if
     :: task[s] == WHOLE ->
        chunk[AT(s, me)] = generation[s];
        task[s] = COPY;
        reduced[AT(s, me)] = generation[s]
     :: else ->
        task[s] = 0;
        have_read[AT(s, me)] = generation[s]
     fi
  fi
}

inline run_queue() {
  do
  :: CAN(0) -> step(0)
  :: CAN(1) -> step(1)
  :: !WORK -> break
  od
}

inline drop(s) {
  reduced[AT(s, me)] = generation[s];
  have_read[AT(s, me)] = generation[s];
  task[s] = 0
}

inline take(s) {
  do
  :: task[s] == 0 -> break
  :: task[s] != 0 && WORK -> run_queue()
  od;
  generation[s]++;
  do
  :: ALL_READ(s) -> break
  :: !ALL_READ(s) && WORK -> run_queue()
  od;
  gradient[AT(s, me)] = generation[s]
}

inline reset() {
  if :: task[0] != 0 -> drop(0) :: else fi;
  if :: task[1] != 0 -> drop(1) :: else fi;
  garbage = false
}

inline choose() {
  if
  :: call[at] = SHARDED :: call[at] = WHOLE :: call[at] = FINISH :: call[at] = RESET :: call[at] = TORN
  fi
}

proctype rank(byte me) {
  byte generation[G], task[G];
  byte at = 0, taken = 0, s;
  bool garbage = false;

  do
  :: at < N ->
     atomic { if :: at == n_calls -> choose(); n_calls++ :: else fi }
     if
     :: call[at] == SHARDED || call[at] == WHOLE ->
        s = taken % G;
        taken++;
        take(s);
        task[s] = call[at];
        ready[AT(s, me)] = generation[s];
        run_queue()
     :: call[at] == FINISH ->
        do
        :: task[0] == 0 && task[1] == 0 -> break
        :: (task[0] != 0 || task[1] != 0) && WORK -> run_queue()
        od;
        assert(!garbage)
     :: call[at] == RESET -> reset()
     :: call[at] == TORN ->
        s = taken % G;
        taken++;
        take(s);
        drop(s);
        reset()
     fi;
     at++
  :: else -> break
  od
}

#endif

init {
  atomic {
    run rank(0);
    run rank(1)
  }
}
