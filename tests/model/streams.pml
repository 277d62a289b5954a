/* SPIN model of the streams under the slot protocol (runtime/fsdp/exchange/order.h, [Note: promises]).
 *
 *   ./dev model      or: spin -a streams.pml && gcc -O2 -w -o pan pan.c && ./pan -m100000
 *
 * Two ranks use one slot N times. Their hosts keep to the protocol of slots.pml, and go on by words
 * that are promises: each enqueues work on streams of its own, which run it in any order that marks
 * (after) and twins of words (await, post) allow. Parameters, in both layouts, are cast and copied by
 * GATHER and read by COMPUTE, which perhaps steps between uses; gradients, sharded and whole, are
 * written by COMPUTE and summed by REDUCE, perhaps to what COMPUTE has prepared, and the sum is
 * perhaps used each time, or at last.
 *
 * Checked: no stream waits in vain; what an item reads is of its own generation, and a parameter is
 * cast from the master of its step. All of it once with all orders, and once without each of them:
 * there some run must read what it should not, which is printed, and sought no further. */
#ifndef N
#define N 2
#endif

#define R 2

/* layouts */
#define SHARED 0
#define PULL 1
#define SHARDED 2
#define WHOLE 3

/* msi_stream_dep */
#define STEPPED 1
#define USED 2
#define RELEASED 3
#define FILLED 4
#define GATHERED 5
#define REUSED 6
#define READ 7
#define WRITTEN 8
#define READY 9
#define PREPARED 10
#define CHUNKED 11
#define SUMMED 12

/* streams of a rank: COMPUTE, and GATHER or REDUCE */
#define COMPUTE 0
#define OTHER 1
#define AT(s, q) ((q) * 2 + (s))

mtype = { after, await, post, cast, copy, use, step, write, prepare, sum, chunk, take, update };

byte layout, left_out;
bool steps; /* between uses */
bool adds;  /* sums to what was there */

/* Words, by what and rank: what hosts have promised, and their twins. */
#define HAS_FILLED 0
#define HAS_REDUCED 1
#define HAS_RELEASED 2
#define WORD(what, q) ((what) * R + (q))
byte promised[3 * R], twin[3 * R];

chan queue[2 * R] = [8 * N] of { mtype, byte, byte };
byte enqueued[2 * R], done[2 * R];

/* Generations that lie in: a part of the slot, its chunk, this rank's copy of rank q's part, its sum. */
byte part[R], part_step[R], chunks[R], copied[R * R], copied_step[R * R], summed[R];
byte master[R];   /* steps that made it */
byte prepared[R]; /* the latest that has something to add to */

c_decl {
  static int noticed[4][13];
  static const char *const layouts[] = {"shared", "pull", "sharded", "whole"};
  static const char *const orders[] = {"", "STEPPED", "USED", "RELEASED", "FILLED", "GATHERED", "REUSED",
                                       "READ", "WRITTEN", "READY", "PREPARED", "CHUNKED", "SUMMED"};

  static void notice(int layout, int left_out)
  {
    if (noticed[layout][left_out]++ == 0) {
      printf("noticed: %s without %s\n", layouts[layout], orders[left_out]);
    }
  }
}

/* Enough of it then. */
#define IS_NOTICED c_expr { noticed[now.layout][now.left_out] != 0 }

#define CHECK(right) \
  if \
  :: right \
  :: else -> assert(left_out != 0); c_code { notice(now.layout, now.left_out); } \
  fi

/* -- streams ----------------------------------------------------------------------------------- */

#define STEPS(g) (steps -> (g) - 1 : 0)
#define IS_PREPARED(g) (!adds || prepared[me] >= (g))

proctype stream(byte me; byte its) {
  mtype what;
  byte a, g;

end:
  do
  :: atomic {
       queue[AT(its, me)]?what, a, g;
       if
       :: IS_NOTICED -> break
       :: else
       fi;
       if
       :: what == after -> done[AT(a, me)] >= g || IS_NOTICED
       :: what == await -> twin[WORD(a, 1 - me)] >= g || IS_NOTICED
       :: what == post -> twin[WORD(a, me)] = g
       :: what == cast -> part[me] = g; part_step[me] = master[me]
       :: what == copy -> copied[me * R + a] = part[a]; copied_step[me * R + a] = part_step[a]
       :: what == use && layout == SHARED ->
          CHECK(part[0] == g && part[1] == g && part_step[0] == STEPS(g) && part_step[1] == STEPS(g))
       :: what == use && layout == PULL ->
          CHECK(copied[me * R] == g && copied[me * R + 1] == g &&
                copied_step[me * R] == STEPS(g) && copied_step[me * R + 1] == STEPS(g))
       :: what == step -> master[me]++
       :: what == write -> part[me] = g; chunks[me] = 0 /* it lies in the part */
       :: what == prepare -> prepared[me] = g
       :: what == sum -> CHECK(part[0] == g && part[1] == g && IS_PREPARED(g)); summed[me] = g
       :: what == chunk -> CHECK(part[0] == g && part[1] == g); chunks[me] = g
       :: what == take -> CHECK(chunks[0] == g && chunks[1] == g && IS_PREPARED(g)); summed[me] = g
       :: what == update -> CHECK(summed[me] == g)
       fi;
       done[AT(its, me)]++
     }
  od
}

/* -- hosts ------------------------------------------------------------------------------------- */

inline put(on, what, a, g) {
  queue[AT(on, me)]!what, a, g;
  enqueued[AT(on, me)]++
}

inline put_after(order, on, other, mark) {
  if
  :: left_out != order && mark > 0 -> put(on, after, other, mark)
  :: else
  fi
}

inline put_await(order, on, word, g) {
  if
  :: left_out != order && g > 0 -> put(on, await, word, g)
  :: else
  fi
}

inline say(on, word) {
  put(on, post, word, g);
  promised[WORD(word, me)] = g
}

inline put_prepare() {
  if
  :: adds -> put(COMPUTE, prepare, 0, g); put_after(PREPARED, OTHER, COMPUTE, enqueued[AT(COMPUTE, me)])
  :: else
  fi
}

#define ALL(word, g) (promised[WORD(word, 0)] >= (g) && promised[WORD(word, 1)] >= (g))

proctype parameters(byte me) {
  byte g = 1, used, written;

  do
  :: g <= N ->
     atomic {
       ALL(HAS_RELEASED, g - 1);
       put_after(STEPPED, OTHER, COMPUTE, written);
       if
       :: layout == SHARED -> put_after(USED, OTHER, COMPUTE, used)
       :: else
       fi;
       put_await(RELEASED, OTHER, HAS_RELEASED, g - 1);
       put(OTHER, cast, 0, g);
       say(OTHER, HAS_FILLED)
     }
     atomic {
       ALL(HAS_FILLED, g);
       put_await(FILLED, OTHER, HAS_FILLED, g);
       if
       :: layout == PULL ->
          put_after(USED, OTHER, COMPUTE, used);
          put(OTHER, copy, me, g);
          put(OTHER, copy, 1 - me, g)
       :: else
       fi;
       put_after(GATHERED, COMPUTE, OTHER, enqueued[AT(OTHER, me)]);
       if
       :: layout == PULL -> say(OTHER, HAS_RELEASED)
       :: else
       fi
     }
     atomic {
       put(COMPUTE, use, 0, g);
       used = enqueued[AT(COMPUTE, me)];
       if
       :: layout == SHARED -> say(COMPUTE, HAS_RELEASED)
       :: else
       fi;
       if
       :: steps -> put(COMPUTE, step, 0, g); written = enqueued[AT(COMPUTE, me)]
       :: else
       fi;
       g++
     }
  :: else -> break
  od
}

proctype gradients(byte me) {
  byte g = 1, used, written;

  do
  :: g <= N ->
     atomic {
       ALL(HAS_RELEASED, g - 1);
       put_after(REUSED, COMPUTE, OTHER, used);
       put_await(READ, COMPUTE, HAS_RELEASED, g - 1);
       put(COMPUTE, write, 0, g);
       written = enqueued[AT(COMPUTE, me)];
       say(COMPUTE, HAS_FILLED)
     }
     atomic {
       ALL(HAS_FILLED, g);
       put_after(WRITTEN, OTHER, COMPUTE, written);
       put_await(READY, OTHER, HAS_FILLED, g);
       if
       :: layout == SHARDED -> put_prepare(); put(OTHER, sum, 0, g)
       :: layout == WHOLE -> put(OTHER, chunk, 0, g); say(OTHER, HAS_REDUCED)
       fi
     }
     atomic {
       layout == SHARDED || ALL(HAS_REDUCED, g);
       if
       :: layout == WHOLE -> put_prepare(); put_await(CHUNKED, OTHER, HAS_REDUCED, g); put(OTHER, take, 0, g)
       :: else
       fi;
       say(OTHER, HAS_RELEASED);
       used = enqueued[AT(OTHER, me)];
       if
       :: steps || g == N -> put_after(SUMMED, COMPUTE, OTHER, used); put(COMPUTE, update, 0, g)
       :: else
       fi;
       g++
     }
  :: else -> break
  od
}

init {
  byte q;

  atomic {
    if
    :: steps = false
    :: steps = true
    fi;
    if
    :: layout = SHARED :: layout = PULL :: layout = SHARDED :: layout = WHOLE
    fi;
    if
    :: left_out = 0
    :: layout <= PULL -> select(left_out : STEPPED .. GATHERED)
    :: layout >= SHARDED -> select(left_out : REUSED .. SUMMED)
    fi;
    if
    :: layout >= SHARDED -> adds = true
    :: adds = false
    fi;
    for (q : 0 .. R - 1) {
      run stream(q, COMPUTE);
      run stream(q, OTHER);
      if
      :: layout <= PULL -> run parameters(q)
      :: else -> run gradients(q)
      fi
    }
  }
}
