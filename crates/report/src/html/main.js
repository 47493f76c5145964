// Putting it together: theme, toolbar, legend, the areas and what follows them.

/** What cannot be shown is said, not left out. */
function failed(error) {
  const node = byId('failure');
  node.hidden = false;
  node.textContent = `Part of this page cannot be shown: ${error?.message ?? error}. It was made for browsers of 2023 and later; the file may also be damaged.`;
  console.error(error);
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    // Browsers may not allow it: then it is selected, to be copied by hand.
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = 'Selected: press Ctrl-C';
  }
}

function setUpTheme() {
  const choice = byId('theme');
  // Where a browser keeps nothing for files, the choice holds until the page is closed.
  const kept = (act) => { try { return act(); } catch { return null; } };
  const apply = () => {
    document.documentElement.dataset.theme = choice.value;
    redraw();
  };
  choice.value = kept(() => localStorage.getItem('isotherm-theme')) ?? 'auto';
  if (choice.selectedIndex < 0) choice.value = 'auto';
  choice.addEventListener('change', () => {
    kept(() => localStorage.setItem('isotherm-theme', choice.value));
    apply();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  // At once: a printer does not wait for the next frame.
  matchMedia('print').addEventListener('change', () => drawn.forEach((draw) => draw()));
  apply();
}

function swatch(width, height, colour) {
  const canvas = el('canvas', { width, height, 'aria-hidden': 'true' });
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i += 1) pixels[i] = colour(i % width, Math.floor(i / width));
  canvas.getContext('2d').putImageData(image, 0, 0);
  return canvas;
}

const inverse = { linear: (x) => x, sqrt: (x) => x * x, log: (x) => (x > 0 ? 10 ** (3 * (x - 1)) : 0) };

function drawLegend() {
  const legend = byId('legend');
  const hz = (level) => inverse[scale](level) * model.highest_hz;
  const bar = model.highest_hz > 0
    ? [el('span', {}, 'access rate'), el('div', { class: 'bar' }, swatch(352, 14, (x) => heatColour(hz(x / 351))),
      ...[0, 0.25, 0.5, 0.75, 1].map((level) => {
        const label = el('span', {}, level === 0 && scale === 'log' ? `\u2264 ${formatRate(model.highest_hz / 1000)}` : formatRate(hz(level)));
        label.style.left = `${level * 100}%`;
        return label;
      }))]
    : [el('span', { class: 'key' }, swatch(24, 14, () => heatColour(0)), '0 Hz: nothing was accessed')];
  legend.replaceChildren(...bar,
    el('span', { class: 'key' }, swatch(24, 14, unknownColour), 'unknown: mapped, but not observed'),
    el('span', { class: 'key' }, el('span', { class: 'void' }), 'not monitored'));
}

function setUpToolbar(views) {
  const click = (id, act) => byId(id).addEventListener('click', act);
  click('time-in', () => time.zoom(0.5));
  click('time-out', () => time.zoom(2));
  click('earlier', () => time.move(-0.25));
  click('later', () => time.move(0.25));
  click('whole', () => { time.whole(); views.forEach((view) => view.window.whole()); });
  byId('scale').value = scale;
  byId('scale').addEventListener('change', (event) => {
    scale = event.target.value;
    drawLegend();
    redraw();
  });
  byId('layout').addEventListener('change', (event) => {
    byId('areas').className = event.target.value;
    redraw();
  });
  const field = byId('chooser').querySelector('fieldset');
  for (const view of views) {
    const box = el('input', { type: 'checkbox', checked: true });
    box.addEventListener('change', () => {
      view.node.hidden = !box.checked;
      redraw();
    });
    field.append(el('label', {}, box, ` ${view.area.title}`));
  }
  byId('chooser').hidden = views.length < 2;
  byId('layout').parentElement.hidden = views.length < 2;
  byId('chooser').addEventListener('keydown', (event) => {
    if (event.key === 'Escape') { byId('chooser').open = false; byId('chooser').querySelector('summary').focus(); }
  });
  onView(() => {
    byId('time-in').disabled = time.span <= time.least;
    byId('time-out').disabled = time.isWhole;
    byId('earlier').disabled = time.low <= 0;
    byId('later').disabled = time.high >= time.length;
  });
}

async function start() {
  const views = model.areas.map((area, index) => new AreaView(area, index));
  byId('areas').append(...views.map((view) => view.node));
  setUpToolbar(views);
  setUpTheme();
  drawLegend();
  if (model.trend) new TrendView(await inflateJson(model.trend));
  if (model.holdings) new HoldingsView(await inflateJson(model.holdings));
  redraw();
}

start().catch(failed);
