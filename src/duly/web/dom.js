// Builds elements from names, properties and children. Text is always text: nothing here parses HTML.

const SVG = 'http://www.w3.org/2000/svg';
const SVG_TAGS = new Set(['svg', 'g', 'path', 'rect', 'line', 'circle', 'text', 'title', 'polyline', 'polygon', 'defs', 'marker', 'pattern']);

export function h(tag, properties = {}, ...children) {
  const isSvg = SVG_TAGS.has(tag) && !(tag === 'title' && properties.html);
  const element = isSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'style') for (const [key, given] of Object.entries(value)) element.style.setProperty(key, given);
    else if (name === 'value' || name === 'checked' || name === 'indeterminate') element[name] = value;
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

// Keeps the place of the focus where a list is drawn again.
export function redraw(element, ...children) {
  const key = document.activeElement?.closest?.('[data-key]')?.dataset.key;
  const inner = document.activeElement?.dataset?.part;
  replace(element, ...children);
  if (!key) return element;
  const row = [...element.querySelectorAll('[data-key]')].find((each) => each.dataset.key === key);
  const target = inner ? row?.querySelector(`[data-part="${CSS.escape(inner)}"]`) : row;
  target?.focus({ preventScroll: true });
  return element;
}
