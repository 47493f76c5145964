// What is in view: a stretch of the time, common to all, and of each area a stretch of its addresses.

/** A stretch of 0..length that can be moved and resized, never below `least`; its ends are multiples of `grain`. */
class Stretch {
  constructor(length, least, grain) {
    Object.assign(this, { length, least: Math.min(least, length), grain, low: 0, high: length });
  }

  get span() { return this.high - this.low; }

  get isWhole() { return this.low <= 0 && this.high >= this.length; }

  set(low, high) {
    const round = (at) => Math.round(at / this.grain) * this.grain;
    const span = clamp(round(high - low), this.least, this.length);
    this.low = clamp(round((low + high - span) / 2), 0, this.length - span);
    this.high = this.low + span;
    redraw();
  }

  /** Makes it `factor` times as long; what lies at `at` stays where it is. */
  zoom(factor, at = (this.low + this.high) / 2) {
    const span = clamp(this.span * factor, this.least, this.length);
    const low = at - (at - this.low) * (span / this.span);
    this.set(low, low + span);
  }

  /** Moves it by a share of its length. */
  move(share) {
    const by = clamp(this.span * share, -this.low, this.length - this.high);
    this.set(this.low + by, this.high + by);
  }

  /** Moves it as little as needed to have `from..to` inside. */
  show(from, to) {
    if (from < this.low) this.move((from - this.low) / this.span);
    else if (to > this.high) this.move((to - this.high) / this.span);
  }

  whole() { this.set(0, this.length); }
}

const drawn = [];
let scheduled = false;

/** Draws everything again before the next frame. */
function redraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    drawn.forEach((draw) => draw());
  });
}

/** Calls `draw` whenever what is in view changes. */
const onView = (draw) => { drawn.push(draw); };

/** The shortest time worth showing: three snapshots, or four cells where those are coarser. */
const time = new Stretch(model.length_ns, Math.max(3 * model.snapshot_ns, 4 * model.column_ns), 1);

const live = byId('live');
/** Has a screen reader say it. */
const say = (text) => { live.textContent = text; };
