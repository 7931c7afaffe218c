"""Airports with scheduled codes and the cities they serve, from the package airportsdata (MIT)."""

import collections
import csv
import dataclasses
import re
import zlib

from acesearch_jax.data.world import text
from acesearch_jax.data.world.geonames import City, Places

_PER_COUNTRY = 330


@dataclasses.dataclass(frozen=True)
class Airport:
  """An airport: its city in GeoNames, the subdivision as the source writes it, elevation in feet."""

  iata: str
  name: str
  city: City
  subdivision: str
  elevation: int


def _city(row: dict[str, str], places: Places) -> City | None:
  found = places.cities.get((row['country'], text.fold(row['city'])), [])
  if row['country'] == 'US':
    found = [c for c in found if places.states.get(c.state) and places.states[c.state].name == row['subd']]
  return found[0] if len(found) == 1 else None


def load_airports(places: Places) -> list[Airport]:
  """Airports whose city is known without doubt; those named differently from their city first.

  Raises:
    UserError: airportsdata is not installed.
  """
  path = text.package_folder('airportsdata', 'airportsdata') / 'airports.csv'
  with path.open(encoding='utf-8', newline='') as stream:
    rows = [row for row in csv.DictReader(stream) if re.fullmatch('[A-Z]{3}', row['iata'])]
  same_name = collections.Counter(text.fold(row['name']) for row in rows)
  telling, plain = [], []
  for row in sorted(rows, key=lambda r: (zlib.crc32(r['iata'].encode()), r['iata'])):
    city = _city(row, places)
    name = text.western(row['name'].strip())
    if not city or not text.is_plain_name(name) or same_name[text.fold(name)] > 1 or len(name) < 8:
      continue
    if not re.search(r'Air|Field|Base|Aer|Heli', name):
      continue
    airport = Airport(row['iata'], name, city, row['subd'], int(float(row['elevation'])))
    (plain if text.fold(city.name) in text.fold(name) else telling).append(airport)
  kept, count = [], collections.Counter()
  for airport in telling + plain:
    if count[airport.city.country] < _PER_COUNTRY:
      count[airport.city.country] += 1
      kept.append(airport)
  return kept
