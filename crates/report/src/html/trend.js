// The working set over time: mean and extremes of each stretch of time, and what was unknown beside it.

const TREND_HEIGHT = 200;

class TrendView {
  constructor(trend) {
    Object.assign(this, { trend, cursor: null });
    byId('trend-what').textContent = `${trend.what}. The line is the mean of each stretch of time, the band reaches from the lowest to the highest value in it; dashed: unknown, in no working set.`;
    this.node = byId('trend-plot');
    this.axes = svg('svg', { 'aria-hidden': 'true' });
    this.tip = el('div', { class: 'tip', hidden: true });
    this.plot = el('div', {
      class: 'plot', tabindex: 0, role: 'application', 'aria-roledescription': 'chart',
      'aria-label': `Working set over time: ${trend.summary}. Left and right arrows read it out.`,
    }, this.axes, this.tip);
    this.node.append(this.plot);
    this.table = el('div', {});
    this.details = el('details', { class: 'as-table' }, el('summary', {}, 'As tables'), this.table);
    this.details.addEventListener('toggle', () => this.fillTable());
    byId('trend-table').append(this.details);
    const on = (name, act) => this.plot.addEventListener(name, act);
    on('pointermove', (event) => {
      const x = event.clientX - this.plot.getBoundingClientRect().left - LEFT;
      if (x < 0 || x > this.width) this.hide();
      else this.show(time.low + (x / this.width) * time.span, false);
    });
    on('pointerleave', () => this.hide());
    on('blur', () => this.hide());
    on('keydown', (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === 'Escape') this.hide();
      if (!by || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const step = Math.max(trend.width_ns, (6 * time.span) / this.width);
      const at = clamp((this.cursor ?? (time.low + time.high) / 2) + by * step, 0, model.length_ns - 1);
      time.show(at, at);
      this.show(at, true);
    });
    new ResizeObserver(redraw).observe(this.plot);
    onView(() => this.draw());
  }

  /** Indexes of the stretches in view, at most `most` groups of neighbours. */
  groups(most) {
    const { start_ns: start, width_ns: width, mean } = this.trend;
    const from = clamp(Math.floor((time.low - start) / width), 0, mean.length);
    const to = clamp(Math.ceil((time.high - start) / width), 0, mean.length);
    const size = Math.max(1, Math.ceil((to - from) / most));
    const groups = [];
    for (let i = from; i < to; i += size) groups.push([i, Math.min(i + size, to)]);
    return groups;
  }

  /**
   * What some stretches say together; `null` when nothing was recorded in them. Where nothing was known of any memory,
   * which is no working set of 0, all but `unknown` are `null`.
   */
  together([from, to]) {
    const { start_ns: start, width_ns: width, mean, min, max, unknown } = this.trend;
    const stretches = Array.from({ length: to - from }, (_, i) => from + i);
    const recorded = stretches.filter((i) => (unknown[i] ?? mean[i]) != null);
    if (recorded.length === 0) return null;
    const known = recorded.filter((i) => mean[i] != null);
    const average = (list, of) => of.reduce((sum, i) => sum + (list[i] ?? 0), 0) / of.length;
    const ifKnown = (value) => (known.length > 0 ? value() : null);
    return {
      from: start + from * width, to: Math.min(start + to * width, model.length_ns),
      mean: ifKnown(() => average(mean, known)), unknown: average(unknown, recorded),
      min: ifKnown(() => Math.min(...known.map((i) => min[i]))), max: ifKnown(() => Math.max(...known.map((i) => max[i]))),
    };
  }

  draw() {
    const outer = this.plot.clientWidth;
    const width = Math.max(80, outer - LEFT - rightOf(outer));
    const height = TREND_HEIGHT;
    this.width = width;
    this.plot.style.height = `${ABOVE + height + BELOW}px`;
    fill(this.axes, { width: outer, height: ABOVE + height + BELOW }, []);
    const points = this.groups(width / 1.5).map((group) => this.together(group));
    const top = Math.max(1, ...points.map((p) => (p ? Math.max(p.max ?? 0, p.unknown) : 0))) * 1.05;
    const x = (ns) => clamp(((ns - time.low) / time.span) * width, 0, width);
    const y = (bytes) => height - (bytes / top) * height;
    const group = plotGroup(width, height);
    const step = 2 ** Math.ceil(Math.log2(top / 5));
    for (let at = 0; at <= top; at += step) {
      group.append(svg('line', { class: 'grid', x1: 0, x2: width, y1: y(at), y2: y(at) }),
        svg('text', { x: -10, y: y(at) + 4, 'text-anchor': 'end' }, formatSize(at, true)));
    }
    // Lines end where nothing was recorded, that of the working set also where nothing was known.
    const runs = (isThere) => {
      const all = [[]];
      points.forEach((p) => (p && isThere(p) ? all.at(-1).push(p) : all.push([])));
      return all.filter((run) => run.length > 0);
    };
    const edge = (value, list) => list.flatMap((p) => [`${x(p.from)},${y(value(p))}`, `${x(p.to)},${y(value(p))}`]);
    for (const run of runs((p) => p.mean != null)) {
      const back = [...run].reverse().flatMap((p) => [`${x(p.to)},${y(p.min)}`, `${x(p.from)},${y(p.min)}`]);
      group.append(
        svg('polygon', { class: 'band', points: [...edge((p) => p.max, run), ...back].join(' ') }),
        svg('polyline', { class: 'curve', points: edge((p) => p.mean, run).join(' ') }),
      );
    }
    if (this.trend.unknown.some((bytes) => bytes > 0)) {
      for (const run of runs(() => true)) group.append(svg('polyline', { class: 'unknown', points: edge((p) => p.unknown, run).join(' ') }));
    }
    if (this.cursor != null) group.append(svg('line', { class: 'tick', x1: x(this.cursor), x2: x(this.cursor), y1: 0, y2: height }));
    timeAxis(group, width, height, true);
    this.axes.replaceChildren(group);
    if (this.details.open) this.fillTable();
  }

  show(at, aloud) {
    const { start_ns: start, width_ns: width } = this.trend;
    this.cursor = at;
    const per = this.groups(this.width / 1.5).find(([from, to]) => at >= start + from * width && at < start + to * width);
    const point = per && this.together(per);
    const step = Math.min(width, 1e9);
    const known = point && (point.mean == null ? ['working set not known: nothing was seen of any memory']
      : [`working set ${formatSize(point.mean)}`, `lowest ${formatSize(point.min)}, highest ${formatSize(point.max)}`]);
    const lines = point
      ? [...known, `unknown ${formatSize(point.unknown)}`, `${formatMoment(model.start_ns + point.from, step)} to ${formatMoment(model.start_ns + point.to, step)}`]
      : ['nothing was recorded here', formatMoment(model.start_ns + at, step)];
    this.tip.replaceChildren(el('strong', {}, lines[0]), ...lines.slice(1).map((line) => el('span', {}, line)));
    for (const key of ['mean', 'min', 'max']) {
      if (point?.[key] == null) delete this.tip.dataset[key];
      else this.tip.dataset[key] = point[key];
    }
    if (point) Object.assign(this.tip.dataset, { fromNs: model.start_ns + point.from, toNs: model.start_ns + point.to });
    this.draw();
    placeTip(this.tip, LEFT + ((at - time.low) / time.span) * this.width, ABOVE + 10, this.plot.clientWidth, TREND_HEIGHT);
    if (aloud) say(lines.join(', '));
  }

  hide() {
    if (this.cursor == null) return;
    this.cursor = null;
    this.tip.hidden = true;
    redraw();
  }

  fillTable() {
    const cell = (text) => el('td', {}, text);
    const { percentiles, unknown_percentiles: unknown } = this.trend;
    const table = (caption, head, rows) => el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption }, el('table', {}, el('caption', {}, caption),
      el('thead', {}, el('tr', {}, ...head.map((text) => el('th', { scope: 'col' }, text)))), el('tbody', {}, ...rows)));
    const shares = percentiles.map(([percent, bytes], i) => el('tr', {}, el('th', { scope: 'row' }, `${percent} %`), cell(formatSize(bytes)), cell(formatSize(unknown[i]?.[1] ?? 0))));
    const rows = this.groups(24).map((group) => this.together(group)).filter((p) => p).map((p) => el('tr', {},
      el('th', { scope: 'row' }, formatMoment(model.start_ns + p.from, Math.min(1e9, p.to - p.from))), ...[p.mean, p.min, p.max, p.unknown].map((bytes) => cell(bytes == null ? 'not known' : formatSize(bytes)))));
    this.table.replaceChildren(
      table('Whole recording: size that is not exceeded for this share of the time', ['share of time', 'working set', 'unknown'], shares),
      table('What is in view', ['from', 'mean', 'lowest', 'highest', 'unknown'], rows),
    );
  }
}
