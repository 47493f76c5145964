// Processes and their mappings as a table: sorted by a click on a column, filtered by name.

/** Columns: key of the figures, heading, what it means. */
const FIGURES = [
  ['mapped', 'mapped', 'Mapped and monitored'],
  ['resident', 'resident', 'Of that, present in memory'],
  ['ws_1s', 'working set 1 s', 'Accessed at least once within a second, at the last rates'],
  ['ws_10s', '10 s', 'Accessed at least once in the last 10 s'],
  ['ws_60s', '60 s', 'Accessed at least once in the last 60 s'],
  ['hot', 'hot', 'At a tenth of the highest rate and more, on a mean in which 5 s ago counts a seventh'],
  ['cold_10s', 'cold since 10 s', 'Present, and known not to have been accessed for 10 s'],
  ['cold_1m', '1 min', 'Present, and known not to have been accessed for a minute'],
  ['cold_5m', '5 min', 'Present, and known not to have been accessed for 5 minutes'],
  ['unknown', 'unknown', 'Present, or perhaps present, but not observed'],
];
/** Rows put into the table at once; more when asked for. */
const MANY = 100;

class HoldingsView {
  constructor(holdings) {
    Object.assign(this, { holdings, by: 'ws_60s', falling: true, most: MANY, open: new Set() });
    byId('holdings').hidden = false;
    byId('holdings-what').textContent = `As things stood at the end, ${formatMoment(holdings.time_ns, 1e8)} after the start; of processes that had ended, at their end, before they gave up their memory. "?": not recorded, or not observed for so long. ${holdings.remark}`;
    this.filter = el('input', { type: 'search', id: 'holdings-filter', placeholder: 'part of a name', autocomplete: 'off' });
    this.filter.addEventListener('input', () => { this.most = MANY; this.fill(true); });
    this.more = el('button', { type: 'button' });
    this.more.addEventListener('click', () => { this.most *= 4; this.fill(false); });
    this.head = el('tr', {});
    this.body = el('tbody', {});
    byId('holdings-body').append(
      el('p', { id: 'holdings-tools' }, el('label', {}, 'Show only ', this.filter)),
      el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Processes and mappings' }, el('table', {},
        el('caption', {}, 'Bytes held; a process can be opened to see its mappings'), el('thead', {}, this.head), this.body)),
      this.more,
    );
    // One process is what people want to look into.
    if (holdings.processes.length === 1) this.open.add(holdings.processes[0]);
    this.fill(false);
  }

  heading(key, text, what) {
    const sorted = this.by === key;
    const button = el('button', { type: 'button', title: what }, text + (sorted ? (this.falling ? ' \u2193' : ' \u2191') : ''));
    button.addEventListener('click', () => {
      // Names from the first, figures from the largest.
      this.falling = sorted ? !this.falling : key !== 'name';
      this.by = key;
      this.fill(false);
      this.head.querySelector(`[data-key="${key}"] button`).focus();
      say(`sorted by ${what}, ${this.falling ? 'falling' : 'rising'}`);
    });
    return el('th', { scope: 'col', 'data-key': key, 'aria-sort': sorted ? (this.falling ? 'descending' : 'ascending') : null }, button);
  }

  order(rows) {
    const value = (row) => (this.by === 'name' ? row.name : row.figures[this.by]);
    const sign = this.falling ? -1 : 1;
    return [...rows].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      // What is not known comes last, whichever is first.
      if (a == null || b == null) return (a == null) - (b == null);
      return sign * (a < b ? -1 : a > b ? 1 : 0);
    });
  }

  cells(figures) {
    return FIGURES.map(([key]) => {
      const bytes = figures[key];
      // Of a region that covers several mappings only the sum is known.
      const between = figures.between?.[key];
      const title = between ? `between ${formatSize(between[0])} and ${formatSize(between[1])}: of a region over several mappings only the sum is known` : null;
      const text = between ? (bytes == null ? `<${formatSize(between[1])}` : `~${formatSize(bytes)}`) : bytes == null ? '?' : formatSize(bytes);
      return el('td', { class: key === 'unknown' && bytes > 0 ? 'unknown' : null, title }, text);
    });
  }

  row(kind, name, title, figures, before) {
    return el('tr', { class: kind }, el('th', { scope: 'row', title }, before, name), ...this.cells(figures));
  }

  fill(aloud) {
    this.head.replaceChildren(this.heading('name', 'process, mapping', 'name'), ...FIGURES.map((column) => this.heading(...column)));
    const wanted = this.filter.value.trim().toLowerCase();
    const has = (row) => `${row.name} ${row.pid ?? ''} ${row.path ?? ''}`.toLowerCase().includes(wanted);
    const rows = [];
    let found = 0;
    if (!wanted) rows.push(this.row('process', 'All, what is shared once', null, this.holdings.totals));
    for (const process of this.order(this.holdings.processes)) {
      const whole = has(process);
      const mappings = process.mappings.filter((mapping) => !wanted || whole || has(mapping));
      if (wanted && !whole && mappings.length === 0) continue;
      found += 1;
      if (found > this.most) continue;
      const open = this.open.has(process) || (wanted && !whole);
      const name = `${process.name || 'target'} (${process.pid})${process.ended ? ', ended' : ''}`;
      const toggle = el('button', { type: 'button', 'data-pid': process.pid, 'aria-expanded': String(Boolean(open)), 'aria-label': `Mappings of ${name}` }, open ? '\u2212' : '+');
      toggle.addEventListener('click', () => {
        if (!this.open.delete(process)) this.open.add(process);
        this.fill(false);
        this.body.querySelector(`[data-pid="${process.pid}"]`)?.focus();
      });
      toggle.disabled = process.mappings.length === 0;
      rows.push(this.row('process', name, process.ended ?? null, process.figures, toggle));
      if (open) rows.push(...this.order(mappings).map((mapping) => this.row('mapping', mapping.name, `${mapping.path || mapping.name}, ${mapping.place}`, mapping.figures)));
    }
    if (found === 0) rows.push(el('tr', {}, el('th', { scope: 'row', colspan: FIGURES.length + 1 }, 'nothing has this in its name')));
    this.body.replaceChildren(...rows);
    this.more.hidden = found <= this.most;
    this.more.textContent = `Show more: ${found - this.most} processes are left out`;
    if (aloud) say(`${found} processes`);
  }
}
