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

// Draws again what is drawn: the focus, and how far its parts are scrolled, stay where they are.
export function redraw(element, ...children) {
  const focus = markOf(element, document.activeElement);
  const scrolled = new Map([...element.querySelectorAll(SCROLLED)].map((each) => [each.ariaLabel, [each.scrollLeft, each.scrollTop]]));
  replace(element, ...children);
  for (const each of element.querySelectorAll(SCROLLED)) {
    const [left, top] = scrolled.get(each.ariaLabel) ?? [0, 0];
    if (left) each.scrollLeft = left;
    if (top) each.scrollTop = top;
  }
  if (focus) foundBy(element, focus)?.focus({ preventScroll: true });
  return element;
}

const SCROLLED = '.scroll[aria-label], pre[aria-label]';
const nameOf = (element) => element.ariaLabel || element.name || element.textContent;

// An element by its row, its kind and its name: the one that stands there after a redraw.
function markOf(root, element) {
  if (!element || element === root || !root.contains(element)) return null;
  return { row: element.closest('[data-key]')?.dataset.key, tag: element.tagName, name: nameOf(element) };
}

function foundBy(root, { row, tag, name }) {
  const place = row === undefined ? root : [...root.querySelectorAll('[data-key]')].find((each) => each.dataset.key === row);
  if (!place) return null;
  const isSame = (each) => each.tagName === tag && nameOf(each) === name;
  if (place !== root && place.tagName === tag) return place;
  return [...place.querySelectorAll('*')].find(isSame) ?? null;
}
