/* SPIN models of the slot protocol (runtime/fsdp/exchange/slot.h, [Note: slot protocol]).
 *
 *   ./dev model      or: spin -DGRADIENTS -a slots.pml && gcc -O2 -o pan pan.c && ./pan -m100000
 *
 * Two ranks run one program of N calls; whoever comes to a call first chooses it, so that all
 * programs are tried, under all interleavings. Waits block until what they wait for is there or the
 * a task has work, as msi_progress_wait() does.
 *
 * Parameters: units 0 and 1 share a ring of two slots, unit 2 has a home slot and is kept unsharded.
 * Calls use a unit, perhaps with an early publish of the next (which may then be skipped), write the
 * masters (an optimizer's step: what was published and not used is dropped), or fail on both ranks
 * (reset: everything is dropped). -DPULL: every rank's extents lie in its stage, from where each rank
 * copies them into memory of its own, and releases the slot; fewer calls. Gradients: sharded ones are reduced from the slots of all ranks,
 * whole ones (NO_SHARD) in two phases; calls write one, wait for all, or fail.
 *
 * Once in a run (-DSTRAYS=0: never) one rank alone does something else than the program's call: it
 * skips it, as one whose forward ends without what it has prefetched, or it is reset, perhaps with a
 * gradient slot taken and nothing announced. It goes on with the next call. What ranks name is
 * compared, notes of writes with it; where it differs the job ends, and so it does where a rank needs
 * what another has dropped. Neither may happen, and nobody may wait in vain, while all run one
 * program.
 *
 * Checked: no deadlock; a slot never changes under a reader, and never mixes values from before and
 * after a write; a gradient is never overwritten before all have read it; and what was dropped is
 * never read, whoever dropped it. -DDROPPED_IS_DONE is a protocol without a word for what was
 * dropped, -DPULL -DRELEASED_FIRST one that releases stages before they are copied: the model must
 * refuse them. What devices add is in streams.pml. */
#define R 2
#ifndef N
#define N 4
#endif

#ifndef STRAYS
#define STRAYS 1
#endif

#define AT(s, q) ((s) * R + (q))

byte call[N]; /* the program */
byte n_calls;
bool strayed; /* a rank has done something else */
bool ended;   /* the job, by an error */

#define NAMES (3 * N)
short said[R * NAMES];
byte n_said[R];

/* Whoever is the second to name the k-th use sees whether both name the same. */
inline say(what) {
  d_step {
    said[me * NAMES + n_said[me]] = what;
    if
    :: n_said[1 - me] > n_said[me] && said[(1 - me) * NAMES + n_said[me]] != what ->
       assert(strayed);
       ended = true
    :: else
    fi;
    n_said[me]++
  }
  if :: ended -> goto out :: else fi
}

/* To be among the options of a wait. */
#define OR_END \
  :: ended -> goto out \
  :: timeout -> assert(strayed); goto out

/* 0: do the call; else something else. */
inline stray() {
  atomic {
    if
    :: aside = 0
    :: STRAYS && !strayed -> aside = 1; strayed = true
    :: STRAYS && !strayed -> aside = 2; strayed = true
#ifdef GRADIENTS
    :: STRAYS && !strayed -> aside = 3; strayed = true
#endif
    fi
  }
}

#ifndef GRADIENTS

#define S 3
#define U 3
#define HOME 2 /* unit and slot */
#define BACK 6 /* calls: 0 to 2 use a unit, 3 to 5 use it and publish the next, 6 from 1 to 0 */
#define STEP 7
#define RESET 8

byte filled[S * R], dropped[S * R], released[S * R];   /* words, by slot and rank */
byte content_generation[S * R], content_written[S * R]; /* of rank q's extents in slot s */

#define MAY_FILL(x) \
  (released[AT(slot[x], 0)] + 1 >= generation[x] && released[AT(slot[x], 1)] + 1 >= generation[x])
#define HAS_FILLED(x, q) (filled[AT(slot[x], q)] >= generation[x])
#define HAS_DROPPED(x, q) (dropped[AT(slot[x], q)] >= generation[x] && !HAS_FILLED(x, q))
#define ALL_FILLED_OR_DROPPED(x) \
  ((HAS_FILLED(x, 0) || HAS_DROPPED(x, 0)) && (HAS_FILLED(x, 1) || HAS_DROPPED(x, 1)))
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

/* The slot follows from the program: the free one of the ring that was taken longest ago. */
inline publish(x) {
  d_step {
    if
    :: x == HOME -> slot[x] = HOME
    :: x != HOME && held[0] -> slot[x] = 1
    :: x != HOME && held[1] -> slot[x] = 0
    :: else -> slot[x] = oldest
    fi;
    if
    :: x == HOME
    :: else -> oldest = 1 - slot[x]
    fi;
    assert(!held[slot[x]]);
    held[slot[x]] = true;
    latest[slot[x]]++;
    generation[x] = latest[slot[x]];
    named[x] = written;
    state[x] = 1;
    queued[x] = true
  }
  say(x + 4 * slot[x] + 16 * generation[x] + 256 * written); /* writes are noted */
  run_queue()
}

#ifdef DROPPED_IS_DONE
#define DROP(x) filled[AT(slot[x], me)] = generation[x]
#else
#define DROP(x) dropped[AT(slot[x], me)] = generation[x]
#endif

/* Needs nobody: a publish still queued is dropped. */
inline reshard(x) {
  if
  :: queued[x] -> queued[x] = false; DROP(x)
  :: else
  fi;
  released[AT(slot[x], me)] = generation[x];
  d_step {
    held[slot[x]] = false;
    state[x] = 0
  }
}

#ifdef PULL
#define GENERATION own_generation
#define WRITTEN own_written

inline copy(s, q) {
  own_generation[AT(s, q)] = content_generation[AT(s, q)];
  own_written[AT(s, q)] = content_written[AT(s, q)]
}

inline pull(x) {
#ifdef RELEASED_FIRST
  released[AT(slot[x], me)] = generation[x];
#endif
  copy(slot[x], me);
  copy(slot[x], 1 - me);
  released[AT(slot[x], me)] = generation[x]
}

#define PULL_IF_NEW(x) if :: state[x] == 1 -> pull(x) :: else fi;
#else
#define GENERATION content_generation
#define WRITTEN content_written
#define PULL_IF_NEW(x)
#endif

#define IS_READ(x, q) \
  (GENERATION[AT(slot[x], q)] == generation[x] && WRITTEN[AT(slot[x], q)] == named[x])

inline read(x) {
  assert(IS_READ(x, 0));
  assert(IS_READ(x, 1))
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
  :: ALL_FILLED_OR_DROPPED(x) -> break
  :: !ALL_FILLED_OR_DROPPED(x) && WORK -> run_queue()
  OR_END
  od;
  if
  :: HAS_DROPPED(x, 0) || HAS_DROPPED(x, 1) -> assert(strayed); ended = true; goto out
  :: else
  fi;
  PULL_IF_NEW(x)
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

#ifdef PULL
inline choose() { /* few, so that it takes seconds */
  if
  :: call[at] = 3 :: call[at] = 5 :: call[at] = STEP
  fi
}
#else
inline choose() {
  if
  :: call[at] = 0 :: call[at] = 1 :: call[at] = 2 :: call[at] = 3 :: call[at] = 4 :: call[at] = 5
  :: call[at] = BACK :: call[at] = STEP :: call[at] = RESET
  fi
}
#endif

/* Everything, or what was published and not used. */
inline reshard_all(least, most) {
  x = 0;
  do
  :: x < U && state[x] >= least && state[x] <= most -> reshard(x); x++
  :: x < U && (state[x] < least || state[x] > most) -> x++
  :: x == U -> break
  od
}

proctype rank(byte me) {
  byte state[U]; /* 0 sharded, 1 published, 2 unsharded */
  byte slot[U], generation[U], named[U], latest[S];
#ifdef PULL
  byte own_generation[S * R], own_written[S * R]; /* copies of the stages */
#endif
  bool queued[U], held[S];
  byte oldest = 0, written = 0, at = 0, x, aside;

  do
  :: at < N ->
     atomic { if :: at == n_calls -> choose(); n_calls++ :: else fi }
     stray();
     if
     :: aside == 1 -> reshard_all(1, 1)
     :: aside == 2 || aside == 0 && call[at] == RESET -> reshard_all(1, 2)
     :: aside == 0 && call[at] < U -> use(call[at], U)
     :: aside == 0 && call[at] >= U && call[at] < BACK -> use(call[at] - U, (call[at] - U + 1) % U)
     :: aside == 0 && call[at] == BACK -> use(1, 0)
     :: aside == 0 && call[at] == STEP -> reshard_all(1, 1); written++
     fi;
     at++
  :: else -> break
  od;
out:
  skip
}

#else

#define G 2 /* slots per rank */
#define SHARDED 1
#define WHOLE 2 /* as a task: its chunk is to be reduced */
#define COPY 3  /* its chunk is reduced, the others' are to be copied */
#define FINISH 4
#define RESET 5
#define TORN 6 /* reset between taking a slot and announcing what is in it */

byte ready[G * R], reduced[G * R], dropped[G * R], have_read[G * R]; /* words, by slot and rank */
byte gradient[G * R], chunk[G * R];                  /* generations in rank q's slot */

#define ALL(word, s) (word[AT(s, 0)] >= generation[s] && word[AT(s, 1)] >= generation[s])
#define ALL_READ(s) (have_read[AT(s, 0)] + 1 >= generation[s] && have_read[AT(s, 1)] + 1 >= generation[s])
#define CAN(s) (((task[s] == SHARDED || task[s] == WHOLE) && ALL(ready, s)) || (task[s] == COPY && ALL(reduced, s)))
#define WORK (CAN(0) || CAN(1))
#define LACKS(s, q) (dropped[AT(s, q)] >= generation[s] && reduced[AT(s, q)] < generation[s])
#define LACKING(s) (task[s] == COPY && (LACKS(s, 0) || LACKS(s, 1)))

inline step(s) {
  if
  :: task[s] == COPY ->
     assert(chunk[AT(s, 0)] == generation[s]);
     assert(chunk[AT(s, 1)] == generation[s]);
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

#ifdef DROPPED_IS_DONE
#define DROP(s) reduced[AT(s, me)] = generation[s]
#else
#define DROP(s) dropped[AT(s, me)] = generation[s]
#endif

inline drop(s) {
  DROP(s);
  have_read[AT(s, me)] = generation[s];
  task[s] = 0
}

/* Until its reduction is done; the job ends where a peer has dropped its chunk. */
inline wait_reduced(s) {
  do
  :: task[s] == 0 -> break
  :: task[s] != 0 && WORK -> run_queue()
  :: task[s] != 0 && !WORK && LACKING(s) -> assert(strayed); ended = true; goto out
  OR_END
  od
}

inline take(s) {
  wait_reduced(s);
  generation[s]++;
  do
  :: ALL_READ(s) -> break
  :: !ALL_READ(s) && WORK -> run_queue()
  OR_END
  od;
  gradient[AT(s, me)] = generation[s]
}

inline reset() {
  if :: task[0] != 0 -> drop(0) :: else fi;
  if :: task[1] != 0 -> drop(1) :: else fi
}

inline choose() {
  if
  :: call[at] = SHARDED :: call[at] = WHOLE :: call[at] = FINISH :: call[at] = RESET :: call[at] = TORN
  fi
}

proctype rank(byte me) {
  byte generation[G], task[G];
  byte at = 0, taken = 0, s, aside;

  do
  :: at < N ->
     atomic { if :: at == n_calls -> choose(); n_calls++ :: else fi }
     stray();
     if
     :: aside == 1
     :: aside == 2 || aside == 0 && call[at] == RESET -> reset()
     :: aside == 0 && (call[at] == SHARDED || call[at] == WHOLE) ->
        s = taken % G;
        taken++;
        take(s);
        task[s] = call[at];
        say(call[at] + 4 * s + 8 * generation[s]);
        ready[AT(s, me)] = generation[s];
        run_queue()
     :: aside == 0 && call[at] == FINISH -> wait_reduced(0); wait_reduced(1)
     :: aside == 3 || aside == 0 && call[at] == TORN ->
        s = taken % G;
        taken++;
        take(s);
        drop(s);
        reset()
     fi;
     at++
  :: else -> break
  od;
out:
  skip
}

#endif

init {
  atomic {
    run rank(0);
    run rank(1)
  }
}
