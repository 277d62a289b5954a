/* SPIN model of the slot protocol (fsdp.h, [Note: slot protocol]).
 *
 *   spin -a slots.pml && gcc -O2 -o pan pan.c && ./pan -m100000
 *
 * Two ranks each unshard USES units in one order, with an early publish of the next (prefetch, or not:
 * both are tried), and after each write a gradient that both read. Waits block until what they wait
 * for is there or the queue has work, as msi_queue_wait() does. Checked: no deadlock (no invalid end
 * state), a slot never changes under a reader, a gradient is never overwritten before all have read it. */
#define R 2
#define S 2    /* parameter slots */
#define G 2    /* gradient slots per rank */
#define USES 6 /* unshards */

#define W(s, q) ((s) * R + (q))
#define GEN(u) ((u) / S + 1)
#define GGEN(u) ((u) / G + 1)
#define AT(u, q) W((u) % S, q)
#define GAT(u, q) W((u) % G, q)

byte filled[S * R], released[S * R]; /* words, by slot and rank */
byte content[S * R];                 /* generation of rank q's extents in slot s */
byte ready[G * R], have_read[G * R]; /* words, by gradient slot and rank */
byte gradient[G * R];                /* generation in rank q's gradient slot */

#define MAY_FILL(u) (released[AT(u, 0)] + 1 >= GEN(u) && released[AT(u, 1)] + 1 >= GEN(u))
#define ALL_FILLED(u) (filled[AT(u, 0)] >= GEN(u) && filled[AT(u, 1)] >= GEN(u))
#define ALL_READY(u) (ready[GAT(u, 0)] >= GGEN(u) && ready[GAT(u, 1)] >= GGEN(u))
#define ALL_READ(u) (have_read[GAT(u, 0)] + 1 >= GGEN(u) && have_read[GAT(u, 1)] + 1 >= GGEN(u))
#define WORK ((pub < queued && MAY_FILL(pub)) || (red < written && ALL_READY(red)))

/* msi_queue_run(): fill queued publishes [pub, queued), reduce gradients [red, written). */
inline run_queue() {
  do
  :: pub < queued && MAY_FILL(pub) ->
     content[AT(pub, me)] = GEN(pub);
     filled[AT(pub, me)] = GEN(pub);
     pub++
  :: red < written && ALL_READY(red) ->
     assert(gradient[GAT(red, 0)] == GGEN(red));
     assert(gradient[GAT(red, 1)] == GGEN(red));
     have_read[GAT(red, me)] = GGEN(red);
     red++
  :: !WORK -> break
  od
}

proctype rank(byte me) {
  byte u = 0, queued = 0, pub = 0, red = 0, written = 0;

  do
  :: u < USES ->
     if
     :: queued <= u -> queued = u + 1
     :: else
     fi;
     run_queue();
     if /* prefetch: the slot of u + 1 was released by this rank before */
     :: u + 1 < USES -> queued = u + 2; run_queue()
     :: true
     fi;
     do /* unshard u */
     :: ALL_FILLED(u) -> break
     :: !ALL_FILLED(u) && WORK -> run_queue()
     od;
     assert(content[AT(u, 0)] == GEN(u));
     assert(content[AT(u, 1)] == GEN(u)); /* a second read, later: still the same */
     assert(content[AT(u, 0)] == GEN(u));
     released[AT(u, me)] = GEN(u);
     do /* take the gradient slot: reduced here, and read by all */
     :: u < red + G && ALL_READ(u) -> break
     :: !(u < red + G && ALL_READ(u)) && WORK -> run_queue()
     od;
     gradient[GAT(u, me)] = GGEN(u);
     ready[GAT(u, me)] = GGEN(u);
     written = u + 1;
     run_queue();
     u++
  :: else -> break
  od;
  do /* the end of backward waits for every reduction and queued publish */
  :: red == written && pub == queued -> break
  :: !(red == written && pub == queued) && WORK -> run_queue()
  od
}

init {
  atomic {
    run rank(0);
    run rank(1)
  }
}
