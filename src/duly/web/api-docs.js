// The API page: search, the place in the contents, and buttons that copy samples. It reads without this.

const search = document.getElementById('search');
const found = document.getElementById('found');
const narrow = matchMedia('(max-width: 760px)');
const entries = [...document.querySelectorAll('.entry')].map((element) => ({ element, words: element.textContent.toLowerCase() }));
const groups = [...document.querySelectorAll('.group')];
const links = [...document.querySelectorAll('#nav li a')];

function show() {
  const asked = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const shown = new Set();
  for (const { element, words } of entries) {
    element.hidden = !asked.every((word) => words.includes(word));
    if (!element.hidden) shown.add(element.id);
  }
  for (const group of groups) {
    const own = [...group.querySelectorAll('.entry')];
    group.hidden = asked.length > 0 && !own.some((entry) => !entry.hidden);
  }
  for (const link of links) {
    const target = document.getElementById(decodeURIComponent(link.hash.slice(1)));
    link.parentElement.hidden = Boolean(target?.closest('[hidden]'));
  }
  found.textContent = asked.length ? `${shown.size} of ${entries.length} entries` : '';
}

function mark() {
  for (const link of links) {
    if (link.hash && link.hash === location.hash) link.setAttribute('aria-current', 'location');
    else link.removeAttribute('aria-current');
  }
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.closest('[hidden]')) { search.value = ''; show(); target.scrollIntoView(); }
  if (narrow.matches) document.querySelector('#nav details').open = false;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement('textarea');
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
  }
}

for (const sample of document.querySelectorAll('.sample')) {
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'small';
  button.textContent = 'Copy';
  button.addEventListener('click', async () => {
    await copy(sample.querySelector('pre').textContent);
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  });
  sample.append(button);
}

search.hidden = false;
search.addEventListener('input', show);
search.addEventListener('keydown', (event) => {
  const first = event.key === 'Enter' && entries.find(({ element }) => !element.hidden);
  if (first) location.hash = first.element.id;
});
addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'Escape') {
    search.value = '';
    show();
    search.blur();
  } else if (event.key === '/' && event.target !== search) {
    event.preventDefault();
    search.focus();
  }
});
addEventListener('hashchange', mark);
mark();
