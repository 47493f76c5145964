// The cells of an area: levels of tiles, decoded when they come into view. html/code.rs tells what the codes mean,
// html/pyramid.rs how tiles are laid out.

const EMPTY = 0;
const UNKNOWN = 1;
const COLD = 2;

/** Rates of the codes, Hz. */
const RATES = Float64Array.from({ length: 256 }, (_, code) =>
  (code <= COLD ? 0 : model.highest_hz * model.rate_step ** (code - 255)));
/** Ages of the codes, ns. */
const AGES = Float64Array.from({ length: 256 }, (_, code) =>
  (code === 0 ? 0 : model.least_age_s * 1e9 * model.age_step ** (code - 1)));

/** The lowest rate that has a code of its own: what is coded by it may be rarer still. */
const RAREST = COLD + 1;

class Cells {
  constructor(levels) {
    this.levels = levels;
    this.tiles = levels.map((level) => level.tiles.map((block) => (block ? undefined : null)));
    this.pending = new Map();
  }

  /** Indexes of the tiles that hold some of these columns and rows. */
  needed(index, columns, rows) {
    const { rows: allRows } = this.levels[index];
    const down = Math.ceil(allRows / model.tile);
    const found = [];
    for (let x = Math.floor(columns[0] / model.tile); x * model.tile < columns[1]; x += 1) {
      for (let y = Math.floor(rows[0] / model.tile); y * model.tile < rows[1]; y += 1) found.push(x * down + y);
    }
    return found;
  }

  ready(index, columns, rows) {
    return this.needed(index, columns, rows).every((at) => this.tiles[index][at] !== undefined);
  }

  /** Decodes what is not decoded yet. */
  load(index, columns, rows) {
    const one = (at) => {
      const key = `${index}:${at}`;
      if (!this.pending.has(key)) {
        const store = (bytes) => { this.tiles[index][at] = bytes; };
        this.pending.set(key, inflate(this.levels[index].tiles[at]).then(store));
      }
      return this.pending.get(key);
    };
    const missing = this.needed(index, columns, rows).filter((at) => this.tiles[index][at] === undefined);
    return Promise.all(missing.map(one));
  }

  /**
   * Adds up what the cells of these columns and rows say, as if they were one: `heat`, `seen`, `unknown` and `aged` are
   * shares of a cell. They must have been loaded. Nothing is allocated: it is called for every pixel.
   */
  add(index, c0, c1, r0, r1) {
    const { columns, rows } = this.levels[index];
    const tiles = this.tiles[index];
    const side = model.tile;
    const down = Math.ceil(rows / side);
    let [heat, seen, unknown, aged, rare] = [0, 0, 0, 0, true];
    for (let c = c0; c < c1; c += 1) {
      const x = Math.floor(c / side);
      const width = Math.min(side, columns - x * side);
      for (let r = r0; r < r1; r += 1) {
        const y = Math.floor(r / side);
        const tile = tiles[x * down + y];
        if (!tile) continue;
        const height = Math.min(side, rows - y * side);
        const at = (c - x * side) * height + (r - y * side);
        const plane = width * height;
        const code = tile[at];
        if (code === EMPTY) continue;
        const known = code === UNKNOWN ? 0 : tile[at + 2 * plane] / 255;
        seen += known;
        unknown += 1 - known;
        heat += RATES[code] * known;
        aged += AGES[tile[at + plane]] * known;
        rare &&= code === RAREST || known === 0;
      }
    }
    this.heat = heat;
    this.seen = seen;
    this.unknown = unknown;
    this.aged = aged;
    this.rare = rare;
  }

  /** The code of what was added up, as far as it is no rate: `EMPTY`, `UNKNOWN`, or `COLD` for any rate. */
  sort() {
    const { heat, seen, unknown } = this;
    if (seen + unknown === 0) return EMPTY;
    if (seen === 0 || (unknown > seen && (heat === 0 || heat / seen < model.hot * model.highest_hz))) return UNKNOWN;
    return COLD;
  }

  /** What these cells show together. */
  mean(index, c0, c1, r0, r1) {
    this.add(index, c0, c1, r0, r1);
    const { heat, seen, unknown, aged, rare } = this;
    const kind = ['empty', 'unknown', 'rate'][this.sort()];
    const share = seen + unknown > 0 ? seen / (seen + unknown) : 0;
    return kind === 'rate' ? { kind, share, hz: heat / seen, ageNs: aged / seen, rare: rare && heat > 0 } : { kind, share };
  }
}

/** What a cell shows, in words. */
function describeCell(cell) {
  if (cell.kind === 'empty') return ['not monitored'];
  if (cell.kind === 'unknown') return ['unknown: mapped, but not observed'];
  const percent = model.ceiling_hz > 0 ? ` (${formatShare(cell.hz / model.ceiling_hz)} of the highest that can be seen)` : '';
  const rate = cell.hz === 0 ? '0 Hz: not accessed' : `${cell.rare ? 'at most ' : ''}${formatRate(cell.hz)}${percent}`;
  const lines = [rate, `age ${cell.ageNs === 0 ? 'less than ' + formatTime(model.least_age_s * 1e9) : formatTime(cell.ageNs)}`];
  if (cell.share < 0.995) lines.push(`${formatShare(1 - cell.share)} of it unknown`);
  return lines;
}

/** The same, as short as a table needs it. */
function shortCell(cell) {
  if (cell.kind === 'empty') return '';
  return cell.kind === 'unknown' ? 'unknown' : formatRate(cell.hz);
}
