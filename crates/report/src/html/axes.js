// What stands around a plot: ticks, labels, the names of mappings.

/** Room left of a plot, for addresses, and right of it, for names. */
const LEFT = 122;
const rightOf = (width) => (width > 700 ? 150 : 12);
/** Room below a plot, for the time. */
const BELOW = 38;
const ABOVE = 7;

/** Round values from `low` to `high`: multiples of 1, 2 or 5 times a power of ten, at most about `most`. */
function ticks(low, high, most) {
  const raw = (high - low) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  return multiples(low, high, step);
}

/** Never more than these: beside numbers so large that a step is lost in rounding, adding it would go on for ever. */
const MOST_TICKS = 200;

function multiples(low, high, step) {
  const found = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let i = 0; i < MOST_TICKS; i += 1) {
    const at = (first + i) * step;
    // Also where it is no number.
    if (!(at <= high + step * 1e-9)) break;
    if (at !== found[found.length - 1]) found.push(at);
  }
  return { step, found };
}

/** Steps that divide minutes, hours and days. */
const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((s) => s * 1e9);

function timeTicks(low, high, most) {
  const raw = (high - low) / Math.max(most, 1);
  if (raw <= 1e9 || raw > 86400e9 || high < 600e9) return ticks(low, high, most);
  return multiples(low, high, CLOCK.find((s) => s >= raw) ?? 86400e9);
}

/** The time axis below a plot of this size. */
function timeAxis(group, width, height, label) {
  const [low, high] = [model.start_ns + time.low, model.start_ns + time.high];
  const { step, found } = timeTicks(low, high, Math.max(2, width / 95));
  for (const at of found) {
    const x = ((at - low) / (high - low)) * width;
    group.append(
      svg('line', { class: 'tick', x1: x, x2: x, y1: height, y2: height + 5 }),
      svg('text', { x, y: height + 18, 'text-anchor': 'middle' }, formatMoment(at, step)),
    );
  }
  if (label) group.append(svg('text', { x: width / 2, y: height + 34, 'text-anchor': 'middle' }, 'time from the start of the recording'));
}

/** Addresses at the left: where the view begins and ends in full, distances from the area's start between them. */
function addressAxis(group, area, window, height) {
  const y = (offset) => height - ((offset - window.low) / window.span) * height;
  const put = (offset, text, name) => group.append(
    svg('line', { class: 'tick', x1: -6, x2: 0, y1: y(offset), y2: y(offset) }),
    svg('text', { x: -10, y: y(offset) + 4, 'text-anchor': 'end', class: name }, text),
  );
  put(window.low, formatAddress(area.start, window.low), 'name');
  put(window.high, formatAddress(area.start, window.high), 'name');
  const step = 2 ** Math.ceil(Math.log2(window.span / Math.max(height / 48, 1)));
  for (const at of multiples(window.low, window.high, step).found) {
    // Not where it would run into those of the ends.
    if (at > 0 && y(at) > 18 && height - y(at) > 18) put(at, `+ ${formatSize(at, true)}`);
  }
}

/** The mappings at the right: a bracket each, and names as far as there is room, the largest first. */
function mappingNames(group, area, window, width, height, room) {
  if (room < 50) return;
  const y = (offset) => height - ((offset - window.low) / window.span) * height;
  const seen = area.labels
    .map(([offset, size, name]) => [Math.max(offset, window.low), Math.min(offset + size, window.high), name])
    .filter(([from, to]) => from < to)
    .sort((a, b) => b[1] - b[0] - (a[1] - a[0]));
  const taken = [];
  const letters = Math.floor((room - 18) / 7);
  for (const [from, to, name] of seen.slice(0, 400)) {
    const [top, bottom] = [y(to), y(from)];
    if (bottom - top >= 3) group.append(svg('line', { class: 'bracket', x1: width + 6, x2: width + 6, y1: top + 1, y2: bottom - 1 }));
    const middle = clamp((top + bottom) / 2, 6, height - 6);
    if (taken.some((other) => Math.abs(other - middle) < 15)) continue;
    taken.push(middle);
    const short = name.length > letters ? `${name.slice(0, letters - 1)}~` : name;
    group.append(svg('text', { class: 'name', x: width + 13, y: middle + 4 }, svg('title', {}, name), short));
  }
}

/** A group moved to where the plot begins, with a frame around it. */
const plotGroup = (width, height) => svg('g', { transform: `translate(${LEFT} ${ABOVE})` },
  svg('rect', { class: 'frame', x: -0.5, y: -0.5, width: width + 1, height: height + 1 }));

/** Puts a tooltip beside a point of the plot, inside of it. */
function placeTip(tip, x, y, width, height) {
  tip.hidden = false;
  const [w, h] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${x + 16 + w > width ? Math.max(0, x - 16 - w) : x + 16}px`;
  tip.style.top = `${y + 16 + h > height + 40 ? Math.max(0, y - 12 - h) : y + 16}px`;
}
