// What all other parts need: the data of the page, elements, figures with their units.

const model = JSON.parse(document.getElementById('model').textContent);
const blocks = document.getElementById('blocks').textContent;
const byId = (id) => document.getElementById(id);

/** The bytes of a block: base64, then zlib. */
async function inflate([at, length]) {
  const text = atob(blocks.slice(at, at + length));
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

const inflateJson = async (block) => JSON.parse(new TextDecoder().decode(await inflate(block)));

/** Sets attributes and appends children; strings become text, never markup. */
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === true) node.setAttribute(name, '');
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const SVG = 'http://www.w3.org/2000/svg';
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** As many digits as asked for, without trailing zeros, at most four decimals. */
function significant(value, digits) {
  if (value === 0 || !Number.isFinite(value)) return value === 0 ? '0' : '?';
  const magnitude = Math.floor(Math.log10(Math.abs(value)));
  const text = value.toFixed(clamp(digits - 1 - magnitude, 0, 4));
  const short = text.includes('.') ? text.replace(/\.?0+$/, '') : text;
  return short === '0' || short === '-0' ? '<0.0001' : short;
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

/** Bytes with one decimal, or for an axis (`tick`) with as many as a round value needs. */
function formatSize(bytes, tick = false) {
  let [value, unit] = [bytes, 0];
  while (value >= (tick ? 1024 : 1023.95) && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  if (tick) return `${significant(value, 4)} ${UNITS[unit]}`;
  return `${unit === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

function formatRate(hz) {
  if (hz < 999.5) return `${significant(hz, 3)} Hz`;
  return hz < 999500 ? `${significant(hz / 1e3, 3)} kHz` : `${significant(hz / 1e6, 3)} MHz`;
}

const formatShare = (share) => `${significant(share * 100, 3)} %`;

/** A length of time: 850 ns, 100 ms, 12.5 s, 3m 20s, 2h 5m, 3d 4h. */
function formatTime(ns) {
  if (ns < 1) return '0 s';
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  if (ns < 999500) return `${significant(ns / 1e3, 3)} us`;
  if (ns < 999.5e6) return `${significant(ns / 1e6, 3)} ms`;
  if (ns < 99.95e9) return `${significant(ns / 1e9, 3)} s`;
  const s = Math.round(ns / 1e9);
  const two = (large, name, small, smallName) => {
    const rest = Math.floor((s % large) / small);
    return Math.floor(s / large) + name + (rest > 0 ? ` ${rest}${smallName}` : '');
  };
  if (s < 3600) return two(60, 'm', 1, 's');
  return s < 86400 ? two(3600, 'h', 60, 'm') : two(86400, 'd', 3600, 'h');
}

/** A moment, from the recording's start, as finely as `step` needs: 12.3 s, 1:02:05, 1d 3:04:05. */
function formatMoment(ns, step) {
  const decimals = step >= 1e9 ? 0 : Math.min(6, Math.ceil(-Math.log10(step / 1e9)));
  const seconds = ns / 1e9;
  if (Math.abs(seconds) < 600) return `${seconds.toFixed(decimals)} s`;
  const two = (n) => String(n).padStart(2, '0');
  const whole = Math.floor(seconds + 0.5 * 10 ** -decimals);
  const rest = Math.max(0, seconds - whole).toFixed(decimals).slice(1);
  const [d, h, m, s] = [whole / 86400, (whole / 3600) % 24, (whole / 60) % 60, whole % 60].map(Math.floor);
  return `${d > 0 ? `${d}d ` : ''}${h}:${two(m)}:${two(s)}${rest}`;
}

const formatAddress = (start, offset) => `0x${(BigInt(start) + BigInt(Math.round(offset))).toString(16)}`;
