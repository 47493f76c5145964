// One area: its heatmap, what a pointer and keys do to it, and the same values as a table.

/** Shares of the colour scale: 0..=1. */
const scales = {
  linear: (share) => share,
  sqrt: Math.sqrt,
  log: (share) => (share > 0 ? Math.max(0, 1 + Math.log10(share) / 3) : 0),
};
let scale = model.scale;

const packed = (hex) => 0xff000000 | (parseInt(hex.slice(5, 7), 16) << 16) | (parseInt(hex.slice(3, 5), 16) << 8) | parseInt(hex.slice(1, 3), 16);
const HEAT = Uint32Array.from(model.colours, packed);
const [STRIPED, STRIPE] = model.unknown.map(packed);
const heatColour = (hz) => HEAT[Math.round(scales[scale](Math.min(1, hz / model.highest_hz)) * (HEAT.length - 1)) || 0];
/** Unknown is striped, across cells, so that it is no shade of anything. */
const unknownColour = (x, y) => ((x + y) % 8 < 3 ? STRIPE : STRIPED);
const voidColour = () => packed(getComputedStyle(document.documentElement).getPropertyValue('--void').trim());

class AreaView {
  constructor(area, index) {
    Object.assign(this, { area, index, cells: new Cells(area.levels), cursor: null, drag: null, level: 0 });
    const finest = area.levels[0];
    const page = area.size < 4096 ? 1 : 4096;
    this.window = new Stretch(area.size, Math.max(4 * page, 4 * this.rowBytes(0)), page);
    this.coarsest = area.levels.length - 1;
    this.whole = [[0, area.levels[this.coarsest].columns], [0, area.levels[this.coarsest].rows]];
    this.height = clamp(finest.rows * 2, 96, area.height);
    this.build();
    onView(() => this.draw());
  }

  columnNs(level) { return model.column_ns * this.area.levels[level].factor; }

  rowBytes(level) { return this.area.row_bytes * this.area.levels[level].factor; }

  build() {
    const { area, index } = this;
    const id = `area-${index}`;
    const button = (text, label, act) => {
      const node = el('button', { type: 'button', 'aria-label': `${label}, ${area.title}` }, text);
      node.addEventListener('click', act);
      return node;
    };
    this.canvas = el('canvas', {
      id, tabindex: 0, role: 'application', 'aria-roledescription': 'heatmap', 'aria-describedby': 'keys',
      'aria-label': `Heatmap of ${area.title}: ${area.facts}`,
    });
    this.axes = svg('svg', { 'aria-hidden': 'true' });
    this.overlay = svg('svg', { 'aria-hidden': 'true' });
    this.tip = el('div', { class: 'tip', role: 'tooltip', id: `${id}-tip`, hidden: true });
    this.plot = el('div', { class: 'plot' }, this.canvas, this.axes, this.overlay, this.tip);
    this.note = el('p', { class: 'note', hidden: true });
    this.table = el('div', {});
    this.details = el('details', { class: 'as-table' }, el('summary', {}, 'What is in view, as a table'), this.table);
    this.details.addEventListener('toggle', () => this.fillTable());
    this.node = el('section', { class: 'area', 'aria-labelledby': `${id}-title` },
      el('header', {}, el('div', {}, el('h3', { id: `${id}-title` }, area.title), el('p', { class: 'facts' }, area.facts)),
        el('span', { class: 'buttons', role: 'group', 'aria-label': 'Addresses' }, el('span', { class: 'caption', 'aria-hidden': 'true' }, 'Addresses'),
          button('+', 'Zoom in on addresses', () => this.window.zoom(0.5, this.middle())),
          button('\u2212', 'Zoom out of addresses', () => this.window.zoom(2, this.middle())),
          button('\u2191', 'Higher addresses', () => this.window.move(0.25)),
          button('\u2193', 'Lower addresses', () => this.window.move(-0.25)),
          button('Whole', 'Whole area', () => this.window.whole()))),
      this.plot, this.note, this.details);
    const on = (name, act) => this.canvas.addEventListener(name, act);
    on('pointerdown', (event) => this.press(event));
    on('pointermove', (event) => this.move(event));
    on('pointerup', (event) => this.release(event));
    on('pointercancel', () => { this.drag = null; this.drawOverlay(); });
    on('pointerleave', () => { if (!this.drag) this.hide(); });
    on('dblclick', () => { time.whole(); this.window.whole(); });
    on('wheel', (event) => this.wheel(event));
    on('keydown', (event) => this.key(event));
    on('focus', () => { if (this.canvas.matches(':focus-visible')) this.startCursor(); });
    on('blur', () => this.hide());
    new ResizeObserver(redraw).observe(this.plot);
  }

  /** Where address buttons zoom: the cursor, if it is in view. */
  middle() {
    const at = this.cursor?.offset;
    return at >= this.window.low && at < this.window.high ? at : undefined;
  }

  // --- drawing

  draw() {
    if (this.node.hidden || !this.node.isConnected) return;
    const outer = this.plot.clientWidth;
    const width = Math.max(80, outer - LEFT - rightOf(outer));
    const { height } = this;
    Object.assign(this, { width });
    this.plot.style.height = `${ABOVE + height + BELOW}px`;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) [this.canvas.width, this.canvas.height] = [w, h];
    Object.assign(this.canvas.style, { left: `${LEFT}px`, top: `${ABOVE}px`, width: `${width}px`, height: `${height}px` });
    for (const node of [this.axes, this.overlay]) fill(node, { width: outer, height: ABOVE + height + BELOW }, []);
    this.drawAxes(outer);
    // The finest level needed is drawn as soon as it is there, and until then what is.
    const wanted = this.levelFor(w, h);
    let level = wanted;
    while (level < this.coarsest && !this.cells.ready(level, ...this.reach(level))) level += 1;
    const ready = this.cells.ready(level, ...this.reach(level));
    if (ready) this.paint(level, w, h);
    if (level !== wanted || !ready) {
      this.cells.load(ready ? wanted : this.coarsest, ...(ready ? this.reach(wanted) : this.whole)).then(redraw, failed);
    }
    this.node.dataset.drawn = ready && level === wanted ? level : 'waiting';
    this.level = level;
    this.drawOverlay();
    this.tell();
    if (this.details.open) this.fillTable();
  }

  /** The coarsest level that has a cell for every pixel, as far as there is one. */
  levelFor(w, h) {
    const [across, up] = [time.span / model.column_ns / w, this.window.span / this.area.row_bytes / h];
    const factor = Math.max(1, Math.min(across, up));
    const { levels } = this.area;
    const at = levels.findLastIndex((level) => level.factor <= factor);
    return Math.max(0, at);
  }

  /** Columns and rows of a level that are in view. */
  reach(level) {
    const { columns, rows } = this.area.levels[level];
    const ends = (window, unit, most) => [clamp(Math.floor(window.low / unit), 0, most - 1), clamp(Math.ceil(window.high / unit), 1, most)];
    return [ends(time, this.columnNs(level), columns), ends(this.window, this.rowBytes(level), rows)];
  }

  /** For each of `n` pixels, the first and the last but one of the cells it shows. */
  static steps(n, low, high, unit, most) {
    const edges = Int32Array.from({ length: n + 1 }, (_, i) => clamp(Math.floor((low + ((high - low) * i) / n) / unit), 0, most - 1));
    return [edges, Int32Array.from({ length: n }, (_, i) => Math.max(edges[i] + 1, edges[i + 1]))];
  }

  paint(level, w, h) {
    const { columns, rows } = this.area.levels[level];
    const [left, right] = AreaView.steps(w, time.low, time.high, this.columnNs(level), columns);
    const [low, high] = AreaView.steps(h, this.window.low, this.window.high, this.rowBytes(level), rows);
    const codes = Uint32Array.from(RATES, heatColour);
    const empty = voidColour();
    codes[EMPTY] = empty;
    const image = new ImageData(w, h);
    const pixels = new Uint32Array(image.data.buffer);
    const { tile: side } = model;
    const tiles = this.cells.tiles[level];
    const down = Math.ceil(rows / side);
    const ratio = Math.max(1, Math.round(window.devicePixelRatio || 1));
    const shade = (code, x, y) => (code === UNKNOWN ? unknownColour(Math.floor(x / ratio), Math.floor(y / ratio)) : codes[code]);
    for (let x = 0; x < w; x += 1) {
      const [c0, c1] = [left[x], right[x]];
      const tx = Math.floor(c0 / side);
      const inTile = c0 - tx * side;
      for (let i = 0; i < h; i += 1) {
        const [r0, r1] = [low[i], high[i]];
        const y = h - 1 - i;
        if (c1 - c0 === 1 && r1 - r0 === 1) {
          const ty = Math.floor(r0 / side);
          const tile = tiles[tx * down + ty];
          const tall = Math.min(side, rows - ty * side);
          pixels[y * w + x] = tile ? shade(tile[inTile * tall + (r0 - ty * side)], x, y) : empty;
        } else {
          this.cells.add(level, c0, c1, r0, r1);
          const code = this.cells.sort();
          pixels[y * w + x] = code === COLD ? heatColour(this.cells.heat / this.cells.seen) : shade(code, x, y);
        }
      }
    }
    this.canvas.getContext('2d').putImageData(image, 0, 0);
  }

  drawAxes(outer) {
    const group = plotGroup(this.width, this.height);
    addressAxis(group, this.area, this.window, this.height);
    timeAxis(group, this.width, this.height, true);
    mappingNames(group, this.area, this.window, this.width, this.height, outer - LEFT - this.width);
    this.axes.replaceChildren(group);
  }

  drawOverlay() {
    const group = svg('g', { transform: `translate(${LEFT} ${ABOVE})` });
    const box = this.cursor && this.cellBox(this.cursor);
    if (box) group.append(svg('rect', { class: 'cursor outer', ...box }), svg('rect', { class: 'cursor', ...box }));
    if (this.drag?.box) group.append(svg('rect', { class: 'drag', ...this.drag.box }));
    this.overlay.replaceChildren(group);
  }

  // --- cells under a point

  /** The cell, of the level drawn, that holds a moment and an offset. */
  cellAt({ ns, offset }) {
    const { level } = this;
    const { columns, rows } = this.area.levels[level];
    const [column, row] = [clamp(Math.floor(ns / this.columnNs(level)), 0, columns - 1), clamp(Math.floor(offset / this.rowBytes(level)), 0, rows - 1)];
    return { level, column, row };
  }

  /** From when to when and from where to where a cell reaches. */
  extent({ level, column, row }) {
    const [ns, bytes] = [this.columnNs(level), this.rowBytes(level)];
    return {
      from: column * ns, to: Math.min((column + 1) * ns, model.length_ns),
      low: row * bytes, high: Math.min((row + 1) * bytes, this.area.size),
    };
  }

  cellBox(at) {
    const { from, to, low, high } = this.extent(this.cellAt(at));
    const x = (ns) => clamp(((ns - time.low) / time.span) * this.width, 0, this.width);
    const y = (offset) => clamp(this.height - ((offset - this.window.low) / this.window.span) * this.height, 0, this.height);
    if (to <= time.low || from >= time.high || high <= this.window.low || low >= this.window.high) return null;
    return { x: x(from), y: y(high), width: Math.max(2, x(to) - x(from)), height: Math.max(2, y(low) - y(high)) };
  }

  /** The mapping that covers most of a stretch. */
  nameOf(low, high) {
    let [best, most] = ['', 0];
    for (const [offset, size, name] of this.area.labels) {
      const shared = Math.min(high, offset + size) - Math.max(low, offset);
      if (shared > most) [best, most] = [name, shared];
    }
    return best || (this.area.labels.length > 0 ? 'no mapping known' : 'address');
  }

  /** Shows what the cell under the cursor says; aloud when it was moved by keys. */
  async show(aloud) {
    const at = this.cursor;
    const cell = this.cellAt(at);
    const { from, to, low, high } = this.extent(cell);
    const range = [[cell.column, cell.column + 1], [cell.row, cell.row + 1]];
    if (!this.cells.ready(cell.level, ...range)) await this.cells.load(cell.level, ...range);
    if (this.cursor !== at) return;
    const value = this.cells.mean(cell.level, cell.column, cell.column + 1, cell.row, cell.row + 1);
    const name = this.nameOf(low, high);
    const words = describeCell(value);
    const step = Math.min(this.columnNs(cell.level), 1e9);
    const when = `${formatMoment(model.start_ns + from, step)} to ${formatMoment(model.start_ns + to, step)}`;
    const where = `${formatAddress(this.area.start, low)} to ${formatAddress(this.area.start, high)}`;
    this.tip.replaceChildren(el('strong', {}, name), ...words.map((line) => el('span', {}, line)),
      el('span', {}, when), el('span', {}, `${where}, ${formatSize(high - low)}`));
    Object.assign(this.tip.dataset, {
      fromNs: model.start_ns + from, toNs: model.start_ns + to,
      low: formatAddress(this.area.start, low), high: formatAddress(this.area.start, high),
      kind: value.kind, hz: value.hz ?? '', ageNs: value.ageNs ?? '', known: value.share ?? 0,
    });
    const x = LEFT + ((at.ns - time.low) / time.span) * this.width;
    const y = ABOVE + this.height - ((at.offset - this.window.low) / this.window.span) * this.height;
    placeTip(this.tip, x, y, this.plot.clientWidth, ABOVE + this.height);
    this.drawOverlay();
    if (aloud) say([name, ...words, when, where].join(', '));
  }

  hide() {
    this.cursor = null;
    this.tip.hidden = true;
    this.drawOverlay();
  }

  // --- pointer

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [clamp(event.clientX - box.left, 0, box.width - 0.01), clamp(event.clientY - box.top, 0.01, box.height)];
    return { x, y, ns: time.low + (x / box.width) * time.span, offset: this.window.low + (1 - y / box.height) * this.window.span };
  }

  press(event) {
    if (event.button !== 0) return;
    try { this.canvas.setPointerCapture(event.pointerId); } catch { /* A pointer that is gone cannot be captured. */ }
    this.drag = { from: this.at(event), pans: event.shiftKey };
  }

  move(event) {
    const at = this.at(event);
    const { drag } = this;
    if (!drag) {
      this.cursor = at;
      this.show(false).catch(failed);
      return;
    }
    if (drag.pans) {
      time.move((drag.from.ns - at.ns) / time.span);
      this.window.move((drag.from.offset - at.offset) / this.window.span);
      return;
    }
    this.cursor = null;
    this.tip.hidden = true;
    drag.box = { x: Math.min(at.x, drag.from.x), y: Math.min(at.y, drag.from.y), width: Math.abs(at.x - drag.from.x), height: Math.abs(at.y - drag.from.y) };
    this.drawOverlay();
  }

  release(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag?.box) return;
    const at = this.at(event);
    const sorted = (a, b) => (a < b ? [a, b] : [b, a]);
    // A drag along one side zooms along that side only.
    if (drag.box.width >= 6) time.set(...sorted(at.ns, drag.from.ns));
    if (drag.box.height >= 6) this.window.set(...sorted(at.offset, drag.from.offset));
    this.drawOverlay();
  }

  wheel(event) {
    const at = this.at(event);
    // Some systems turn a wheel with Shift into one sideways.
    const turned = event.deltaY || (event.shiftKey ? event.deltaX : 0);
    if (turned === 0) {
      if (event.deltaX !== 0) { event.preventDefault(); time.move(Math.sign(event.deltaX) * 0.08); }
      return;
    }
    const stretch = event.shiftKey || event.altKey ? this.window : time;
    // Zoomed out to the end, the wheel moves the page on.
    if (turned > 0 && stretch.isWhole) return;
    event.preventDefault();
    stretch.zoom(2 ** clamp(turned / 200, -1, 1), stretch === time ? at.ns : at.offset);
  }

  // --- keys

  startCursor() {
    this.cursor ??= { ns: (time.low + time.high) / 2, offset: (this.window.low + this.window.high) / 2 };
    this.show(true).catch(failed);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey) return;
    const away = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    const at = this.cursor ?? { ns: (time.low + time.high) / 2, offset: (this.window.low + this.window.high) / 2 };
    if (away && event.shiftKey) {
      time.move(away[0] * 0.125);
      this.window.move(away[1] * 0.125);
    } else if (away) {
      this.step(at, away, event.altKey ? 10 : 1);
    } else if (event.key === '+' || event.key === '=' || event.key === '-') {
      const factor = event.key === '-' ? 2 : 0.5;
      time.zoom(factor, at.ns);
      this.window.zoom(factor, at.offset);
      say(this.summary());
    } else if (event.key === 'Home' || event.key === '0') {
      time.whole();
      this.window.whole();
      say(this.summary());
    } else if (event.key === 'Escape' && (this.cursor || this.drag)) {
      this.drag = null;
      this.hide();
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Moves the cursor to another cell, at least six pixels away. */
  step(at, [right, up], times) {
    const { from, to, low, high } = this.extent(this.cellAt(at));
    const stride = (unit, span, pixels) => unit * Math.max(1, Math.ceil((6 * span) / pixels / unit)) * times;
    const across = stride(this.columnNs(this.level), time.span, this.width);
    const along = stride(this.rowBytes(this.level), this.window.span, this.height);
    this.cursor = {
      ns: clamp((from + to) / 2 + right * across, 0, model.length_ns - 1),
      offset: clamp((low + high) / 2 + up * along, 0, this.area.size - 1),
    };
    const { ns, offset } = this.cursor;
    time.show(ns, ns);
    this.window.show(offset, offset);
    this.show(true).catch(failed);
  }

  summary() {
    const step = Math.max(1e6, Math.min(1e9, time.span / 100));
    return `Showing ${formatMoment(model.start_ns + time.low, step)} to ${formatMoment(model.start_ns + time.high, step)}, `
      + `${formatAddress(this.area.start, this.window.low)} to ${formatAddress(this.area.start, this.window.high)}, ${formatSize(this.window.span)}`;
  }

  // --- what there is besides

  /** Where the view is finer than the file, says so, and which command shows the rest. */
  tell() {
    const [ns, bytes] = [this.columnNs(0), this.rowBytes(0)];
    const wide = (ns / time.span) * this.width > 3 && ns > 1.5 * model.snapshot_ns;
    const tall = (bytes / this.window.span) * this.height > 3 && bytes > 4096;
    this.note.hidden = !(wide || tall) || this.level !== 0;
    if (this.note.hidden) return;
    const ms = (at, round) => `${round((model.start_ns + at) / 1e6)}ms`;
    const where = this.area.by_address
      ? ` --address ${formatAddress(this.area.start, Math.floor(this.window.low))}-${formatAddress(this.area.start, Math.ceil(this.window.high))}` : '';
    const command = `${model.command}${this.area.command} --time ${ms(time.low, Math.floor)}..${ms(time.high, Math.ceil)}${where} -o detail.png`;
    if (this.note.dataset.command === command) return;
    this.note.dataset.command = command;
    const copy = el('button', { type: 'button' }, 'Copy');
    copy.addEventListener('click', () => copyText(command, copy));
    this.note.replaceChildren(`This file's finest detail: a cell is ${formatTime(ns)} and ${formatSize(bytes)}. The recording has more; this draws what is in view: `,
      el('code', {}, command), copy);
  }

  async fillTable() {
    if (!this.details.open) return;
    const level = this.area.levels.findLastIndex((l) => time.span / (model.column_ns * l.factor) >= 8 && this.window.span / (this.area.row_bytes * l.factor) >= 16);
    const index = Math.max(0, level);
    const [[c0, c1], [r0, r1]] = this.reach(index);
    await this.cells.load(index, [c0, c1], [r0, r1]);
    const cut = (from, to, most) => {
      const n = Math.min(most, to - from);
      return Array.from({ length: n }, (_, i) => [from + Math.floor(((to - from) * i) / n), from + Math.floor(((to - from) * (i + 1)) / n)]);
    };
    const [ns, bytes] = [this.columnNs(index), this.rowBytes(index)];
    const columns = cut(c0, c1, 8);
    const rows = cut(r0, r1, 16).reverse();
    const step = Math.max(1e6, Math.min(1e9, ns));
    const head = el('tr', {}, el('th', { scope: 'col' }, 'addresses'), el('th', { scope: 'col' }, 'mapping'),
      ...columns.map(([from]) => el('th', { scope: 'col' }, `from ${formatMoment(model.start_ns + from * ns, step)}`)));
    const body = rows.map(([low, high]) => el('tr', {},
      el('th', { scope: 'row' }, formatAddress(this.area.start, low * bytes)),
      el('td', {}, this.nameOf(low * bytes, high * bytes)),
      ...columns.map(([from, to]) => {
        const cell = this.cells.mean(index, from, to, low, high);
        return el('td', { class: cell.kind }, shortCell(cell));
      })));
    this.table.replaceChildren(el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Mean access rates of ${this.area.title}` }, el('table', {},
      el('caption', {}, `Mean access rates of ${this.area.title}; empty: not monitored`), el('thead', {}, head), el('tbody', {}, ...body))));
  }
}
