"""Brings the sources together: which cities are in, what homonyms are called, one graph of all facts."""

import collections
import dataclasses

from acesearch_jax.data.world import airports, factbook, geonames, text
from acesearch_jax.data.world.graph import Entity, EntityGraph, Fact

_BIG_CITY = 250_000
_DOMINANT = 10  # a city this many times larger than its namesakes goes by the plain name


def gather() -> EntityGraph:
  """Reads all sources into one graph whose entities all have different texts.

  Raises:
    UserError: a data package is not installed; the message names it.
  """
  places = geonames.load_places(factbook.sovereign_codes())
  entities, facts, capitals = factbook.country_facts(places)
  fields = airports.load_airports(places)
  facts += geonames.country_facts(places)
  known = [*places.countries.values(), *places.states.values(), *geonames.continents(), *entities]
  known = _with_unique_texts(known)
  cities = _choose_cities(places, capitals, fields)
  city_entities = _name_cities(cities, places, {text.fold(e.text) for e in known})
  known += city_entities.values()
  facts += _city_facts(cities, city_entities, places)
  for iso, name in capitals.items():
    city = _capital(iso, name, places)
    if city and city.key in city_entities:
      facts.append(Fact(f'country:{iso}', 'capital', city_entities[city.key].id))
  divisions = _division_index(known)
  taken = {text.fold(e.text) for e in known}
  for field in fields:
    if field.city.key not in city_entities or text.fold(field.name) in taken:
      continue
    taken.add(text.fold(field.name))
    entity = Entity(f'airport:{field.iata}', 'airport', field.name, field.name, text.aliases(field.name))
    city = city_entities[field.city.key]
    known.append(entity)
    facts += [Fact(entity.id, 'serves', city.id), Fact(entity.id, 'iata_code', value=field.iata, unit='code')]
    if field.elevation:  # 0 stands for unknown in the source
      facts.append(Fact(entity.id, 'airport_elevation', value=f'{field.elevation:,} feet',
                        number=float(field.elevation), unit='ft'))
    division = divisions.get((field.city.country, text.fold(field.subdivision)))
    if division:
      facts.append(Fact(city.id, 'in_division', division.id))
  ids = {entity.id for entity in known}
  return EntityGraph(known, [f for f in facts if f.subject in ids and (not f.object or f.object in ids)])


def _division_index(entities: list[Entity]) -> dict[tuple[str, str], Entity]:
  return {(e.id.split(':')[1][:2], text.fold(e.name)): e for e in entities if e.type == 'division'}


def _with_unique_texts(entities: list[Entity]) -> list[Entity]:
  """Entities whose text no other has; a U.S. state gives way to a country by naming its own."""
  countries = {text.fold(e.text) for e in entities if e.type == 'country'}
  entities = [dataclasses.replace(e, text=f'{e.name}, United States')
              if e.type == 'state' and text.fold(e.text) in countries else e for e in entities]
  count = collections.Counter(text.fold(e.text) for e in entities)
  keep = ('country', 'continent', 'state')
  return [e for e in entities if count[text.fold(e.text)] == 1 or e.type in keep]


def _capital(iso: str, name: str, places: geonames.Places) -> geonames.City | None:
  found = places.cities.get((iso, text.fold(name)), [])
  return found[0] if found else None


def _choose_cities(places: geonames.Places, capitals: dict[str, str],
                   fields: list[airports.Airport]) -> list[geonames.City]:
  """Capitals, cities with an airport, big cities, and the namesakes of all these."""
  every = {city.key: city for group in places.cities.values() for city in group}
  chosen = {city.key for city in every.values() if city.population >= _BIG_CITY}
  chosen |= {field.city.key for field in fields}
  chosen |= {city.key for iso, name in capitals.items() if (city := _capital(iso, name, places))}
  names = {text.fold(every[key].name) for key in sorted(chosen)}
  return [city for city in every.values() if city.key in chosen or text.fold(city.name) in names]


def _name_cities(cities: list[geonames.City], places: geonames.Places,
                 taken: set[str]) -> dict[str, Entity]:
  """Entities by city key. Namesakes carry their state or country; what stays ambiguous is left out."""
  groups = collections.defaultdict(list)
  for city in sorted(cities, key=lambda c: (-c.population, c.key)):
    groups[text.fold(city.name)].append(city)
  entities, used = {}, set(taken)
  for folded, group in groups.items():
    plain = folded not in taken and (
        len(group) == 1 or group[0].population >= _DOMINANT * group[1].population)
    for rank, city in enumerate(group):
      region = places.states.get(city.state)
      container = region.name if region else places.countries[city.country].name
      label = city.name if plain and rank == 0 else f'{city.name}, {container}'
      if text.fold(label) not in used:
        used.add(text.fold(label))
        entities[city.key] = Entity(f'city:{city.key}', 'city', city.name, label,
                                    text.aliases(city.name, f'{city.name}, {container}'))
  return entities


def _city_facts(cities: list[geonames.City], entities: dict[str, Entity],
                places: geonames.Places) -> list[Fact]:
  facts = []
  for city in cities:
    if city.key not in entities:
      continue
    subject = entities[city.key].id
    if city.state in places.states:
      facts.append(Fact(subject, 'in_state', places.states[city.state].id))
    else:
      facts.append(Fact(subject, 'in_country', f'country:{city.country}'))
    if city.population > 0:
      facts.append(Fact(subject, 'city_population', value=text.round_words(city.population),
                        number=float(city.population), unit='people'))
  return facts
