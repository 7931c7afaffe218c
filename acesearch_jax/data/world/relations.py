"""The wording: how each relation is stated in passages, looked up in sub-questions and asked in questions.

A sub-question shares a key word with the statement, so that a lexical retriever finds the passage; the
phrases that make up multi-hop questions are worded apart from both. `{s}` is the subject, `{o}` the object.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Relation:
  """Wording of one relation.

  Attributes:
    subject: type of the subject.
    object: type of the object entity, '' for a literal.
    statements: sentences of passages.
    lookups: gold sub-questions for the object, with `{s}`.
    asks: the same as the last hop of a question.
    phrases: noun phrases for the object, `the capital of {s}`; empty where it is not a middle hop.
    claims: statements to be judged, `{s}` may be a phrase.
    back_lookups, back_asks, back_phrases: the same from the object to the subject, with `{o}`.
  """

  subject: str
  object: str
  statements: tuple[str, ...]
  lookups: tuple[str, ...]
  asks: tuple[str, ...] = ()
  phrases: tuple[str, ...] = ()
  claims: tuple[str, ...] = ()
  back_lookups: tuple[str, ...] = ()
  back_asks: tuple[str, ...] = ()
  back_phrases: tuple[str, ...] = ()


RELATIONS: dict[str, Relation] = {
    'capital': Relation(
        'country', 'city',
        ('{o} is the capital of {s}.', 'The capital of {s} is {o}.',
         '{o} serves as the capital city of {s}.'),
        ('What is the capital of {s}?', 'Which city is the capital of {s}?'),
        ('What is the capital of {s}?', 'Which city is the seat of government of {s}?',
         'Name the capital city of {s}.', 'From which city is {s} governed?'),
        ('the capital of {s}', 'the city from which {s} is governed'),
        ('The capital of {s} is {o}.', '{o} is the capital city of {s}.', '{s} is governed from {o}.'),
        ('Which country has the capital {o}?', '{o} is the capital of which country?'),
        ('Which country is governed from {o}?', 'Of which country is {o} the capital?'),
        ('the country whose capital is {o}', 'the country governed from {o}',
         'the nation with {o} as its capital')),
    'currency': Relation(
        'country', 'currency',
        ('{o} is the currency of {s}.', 'The currency used in {s} is {o}.',
         'The official currency of {s} is {o}.'),
        ('What is the currency of {s}?', 'Which currency is used in {s}?'),
        ('What is the currency of {s}?', 'Which currency do people pay with in {s}?',
         'What money is spent in {s}?', 'In which currency are prices quoted in {s}?'),
        (),
        ('The currency of {s} is {o}.', 'People in {s} pay with {o}.'),
        ('Which country has {o} as its currency?',),
        ('Which country pays with {o}?',),
        ('the country that pays with {o}', 'the country whose money is {o}')),
    'official_language': Relation(
        'country', 'language',
        ('{o} is the official language of {s}.', 'The official language of {s} is {o}.'),
        ('What is the official language of {s}?',),
        ('What is the official language of {s}?', 'Which language has official status in {s}?',
         'Which tongue is the official one in {s}?'),
        (),
        ('The official language of {s} is {o}.', '{o} has official status in {s}.'),
        ('Which country has {o} as its official language?',),
        ('In which country is {o} the only official language?',),
        ('the country whose official language is {o}',)),
    'continent': Relation(
        'country', 'continent',
        ('{s} is a country on the continent of {o}.', '{s} belongs to the continent of {o}.'),
        ('On which continent is {s}?',),
        ('On which continent is {s}?', 'To which continent does {s} belong?'),
        (),
        ('{s} is on the continent of {o}.',)),
    'head_of_state': Relation(
        'country', 'person',
        ('{o} is the head of state of {s}.', 'The head of state of {s} is {o}.'),
        ('Who is the head of state of {s}?',),
        ('Who is the head of state of {s}?', 'Who holds the highest office in {s}?',
         'Who is the chief of state of {s}?'),
        (),
        ('The head of state of {s} is {o}.', '{o} holds the highest office in {s}.'),
        ('Of which country is {o} the head of state?', 'Which country has {o} as its head of state?'),
        ('Over which country does {o} preside as chief of state?',
         'Of which country is {o} the head of state?'),
        ('the country whose head of state is {o}', 'the country that has {o} in its highest office',
         'the nation of which {o} is chief of state')),
    'head_of_state_since': Relation(
        'country', '',
        ('The head of state of {s} has been in office since {o}.',
         'In {s}, the head of state has been in office since {o}.'),
        ('Since which year has the head of state of {s} been in office?',),
        ('In which year did the current head of state of {s} take office?',
         'Since when has the current chief of state of {s} been in power?'),
        (),
        ('The head of state of {s} has been in office since {o}.',)),
    'head_of_government': Relation(
        'country', 'person',
        ('{o} is the head of government of {s}.', 'The head of government of {s} is {o}.',
         'The government of {s} is headed by {o}, its head of government.'),
        ('Who is the head of government of {s}?',),
        ('Who is the head of government of {s}?', 'Who leads the government of {s}?',
         'Who runs the cabinet of {s}?'),
        (),
        ('{o} leads the government of {s}.', 'The head of government of {s} is {o}.'),
        ('Of which country is {o} the head of government?',
         'Which country has {o} as its head of government?'),
        ('Which country has a government led by {o}?', 'Of which country does {o} lead the government?'),
        ('the country whose government is led by {o}', 'the country where {o} heads the government')),
    'legislature': Relation(
        'country', 'legislature',
        ('The legislature of {s} is called {o}.', 'In {s}, laws are passed by the legislature, {o}.'),
        ('What is the legislature of {s} called?',),
        ('What is the legislature of {s} called?', 'What is the local name of the parliament of {s}?',
         'Which body makes the laws in {s}?'),
        (),
        ('The legislature of {s} is called {o}.', 'The lawmaking body of {s} is called {o}.'),
        ('Which country has a legislature called {o}?',),
        ('Which country has a parliament called {o}?',),
        ('the country whose parliament is called {o}', 'the country where {o} makes the laws')),
    'government_type': Relation(
        'country', '',
        ('By its form of government, {s} is a {o}.', 'The form of government in {s} is that of a {o}.'),
        ('What form of government does {s} have?',),
        ('What form of government does {s} have?', 'What kind of state is {s}?'),
        (),
        ('{s} is a {o}.',)),
    'anthem': Relation(
        'country', 'anthem',
        ('{o} is the national anthem of {s}.', 'The national anthem of {s} is {o}.'),
        ('What is the national anthem of {s}?',),
        ('What is the national anthem of {s}?', 'What is the title of the anthem of {s}?',
         'Which song is sung as the anthem of {s}?'),
        ('the national anthem of {s}', 'the anthem of {s}'),
        ('The national anthem of {s} is {o}.', '{o} is the anthem of {s}.'),
        ('{o} is the national anthem of which country?', 'Which country has the national anthem {o}?'),
        ('Which country has {o} as its anthem?', '{o} is sung as the anthem of which country?'),
        ('the country whose people sing {o}', 'the nation represented by {o}')),
    'composer': Relation(
        'anthem', 'person',
        ('The music of the anthem {s} was composed by {o}.', '{o} composed the music of the anthem {s}.'),
        ('Who composed the music of {s}?',),
        ('Who composed the music of {s}?', 'Who wrote the tune of {s}?', 'Who is the composer of {s}?'),
        ('the composer of {s}',),
        ('{o} composed {s}.', 'The tune of {s} was written by {o}.'),
        ('For which anthem did {o} compose the music?',),
        ('Which anthem has a tune by {o}?', 'For which anthem did {o} write the tune?'),
        ('the anthem with a tune by {o}', 'the anthem that {o} set to music')),
    'lyricist': Relation(
        'anthem', 'person',
        ('The lyrics of the anthem {s} were written by {o}.', '{o} wrote the lyrics of the anthem {s}.'),
        ('Who wrote the lyrics of {s}?',),
        ('Who wrote the lyrics of {s}?', 'Who is the author of the words of {s}?',
         'Whose words are sung in {s}?'),
        (),
        ('{o} wrote the words of {s}.', 'The lyrics of {s} are by {o}.'),
        ('For which anthem did {o} write the lyrics?',),
        ('Which anthem has words by {o}?', 'For which anthem did {o} supply the words?'),
        ('the anthem with words by {o}', 'the anthem whose text is by {o}')),
    'national_symbol': Relation(
        'country', 'symbol',
        ('{o} is the national symbol of {s}.', 'The national symbol of {s} is {o}.'),
        ('What is the national symbol of {s}?',),
        ('What is the national symbol of {s}?', 'What stands as the emblem of {s}?'),
        (),
        ('The national symbol of {s} is {o}.',),
        ('Which country has {o} as its national symbol?',),
        ('Which country has {o} as its emblem?',),
        ('the country whose emblem is {o}',)),
    'independence_year': Relation(
        'country', '',
        ('{s} gained its independence in {o}.', 'The year of independence of {s} is {o}.'),
        ('In which year did {s} gain independence?',),
        ('In which year did {s} become independent?', 'When did {s} become a free state?',
         'What was the year of independence of {s}?'),
        (),
        ('{s} became independent in {o}.',)),
    'independence_from': Relation(
        'country', 'country',
        ('{s} won independence from {o}.', 'Independence came to {s} from {o}.'),
        ('From which country did {s} win independence?',),
        ('From which power did {s} win its independence?', 'Which state ruled {s} before independence?'),
        ('the former ruler of {s}', 'the power from which {s} won its independence'),
        ('{s} won its independence from {o}.', '{o} ruled {s} before independence.')),
    'national_day_date': Relation(
        'country', '',
        ('The national holiday of {s} falls on {o}.', '{s} celebrates its national holiday on {o}.'),
        ('On which date is the national holiday of {s}?',),
        ('On which date does {s} celebrate its national holiday?', 'When does {s} hold its national day?'),
        (),
        ('{s} celebrates its national holiday on {o}.',)),
    'site_in': Relation(
        'site', 'country',
        ('{s} is a World Heritage Site in {o}.', 'The World Heritage Site {s} is located in {o}.',
         '{s}, found in {o}, is listed as a World Heritage Site.'),
        ('In which country is the World Heritage Site {s}?',),
        ('In which country is the World Heritage Site {s}?', 'Which country is home to {s}?',
         'Where, by country, would a traveler find {s}?'),
        ('the country that is home to {s}', 'the country where one can visit {s}',
         'the country with the World Heritage Site {s}'),
        ('{s} is found in {o}.', '{o} is home to {s}.')),
    'division_of': Relation(
        'division', 'country',
        ('{s} is an administrative division of {o}.', 'One of the administrative divisions of {o} is {s}.'),
        ('Of which country is {s} an administrative division?',),
        ('To which country does {s} belong?', 'Which country includes {s}?'),
        ('the country that includes {s}', 'the country to which {s} belongs'),
        ('{s} belongs to {o}.', '{s} is a part of {o}.')),
    'port_in': Relation(
        'port', 'country',
        ('{s} is one of the key seaports of {o}.', 'Among the key seaports of {o} is {s}.'),
        ('In which country is {s} a key seaport?', 'Of which country is {s} a key seaport?'),
        ('In which country do ships call at {s}?', 'Which country has {s} on its waters?'),
        ('the country where ships call at {s}', 'the country that ships through {s}'),
        ('{s} is located in {o}.',)),
    'highest_point': Relation(
        'country', 'mountain',
        ('{o} is the highest point of {s}.', 'The highest point in {s} is {o}.'),
        ('What is the highest point of {s}?',),
        ('What is the highest point of {s}?', 'Which peak rises above all others in {s}?',
         'Which summit is the tallest in {s}?'),
        ('the tallest peak of {s}', 'the highest summit in {s}'),
        ('The highest point of {s} is {o}.', 'The tallest peak in {s} is {o}.'),
        ('{o} is the highest point of which country?', 'Which country has {o} as its highest point?'),
        ('Which country has {o} as its tallest peak?', 'In which country is {o} the loftiest summit?'),
        ('the country where {o} is the tallest peak', 'the country whose top summit is {o}')),
    'elevation': Relation(
        'mountain', '',
        ('{s} has an elevation of {o}.', 'The elevation of {s} is {o}.'),
        ('What is the elevation of {s}?',),
        ('How high is {s}?', 'What is the height of {s}?'),
        (),
        ('{s} is {o} high.',)),
    'lowest_point': Relation(
        'country', 'water',
        ('The lowest point of {s} is {o}.', 'In {s}, the lowest point is {o}.'),
        ('What is the lowest point of {s}?',),
        ('What is the lowest point of {s}?', 'Where does the land of {s} reach its lowest level?'),
        (),
        ('The lowest point of {s} is {o}.',),
        ('Which country has {o} as its lowest point?',),
        ('Which country reaches its lowest level at {o}?',),
        ('the country whose land is lowest at {o}',)),
    'top_buyer': Relation(
        'country', 'country',
        ('The largest export market of {s} is {o}.', 'For goods from {s}, the largest export market is {o}.'),
        ('Which country is the largest export market of {s}?',),
        ('Which country buys the most from {s}?', 'Which country is the main customer of {s} in trade?',
         'Where does the biggest share of the exports of {s} go?'),
        ('the country that buys the most from {s}', 'the main foreign customer of {s}'),
        ('{o} buys more from {s} than any other country.',
         'The biggest share of the exports of {s} goes to {o}.')),
    'top_supplier': Relation(
        'country', 'country',
        ('The largest source of imports of {s} is {o}.',
         'For goods that reach {s}, the largest source of imports is {o}.'),
        ('Which country is the largest source of imports of {s}?',),
        ('Which country sells the most to {s}?', 'Which country is the main supplier of {s}?',
         'Where does the biggest share of the imports of {s} come from?'),
        ('the country that sells the most to {s}', 'the main foreign supplier of {s}'),
        ('{o} is the main supplier of {s}.', 'The biggest share of the imports of {s} comes from {o}.')),
    'demonym': Relation(
        'country', 'demonym',
        ('Citizens of {s} are known as {o}.', 'People who are citizens of {s} are called {o}.'),
        ('What are citizens of {s} called?',),
        ('What are the people of {s} called?', 'By what name do the inhabitants of {s} go?'),
        (),
        ('The people of {s} are called {o}.',),
        ('Citizens of which country are called {o}?',),
        ('Of which country are {o} citizens?',),
        ('the homeland of {o}', 'the country whose people are called {o}')),
    'space_agency': Relation(
        'country', 'agency',
        ('{o} runs the space program of {s}.', 'The space program of {s} is run by {o}.'),
        ('Which agency runs the space program of {s}?',),
        ('Which agency is in charge of space flight and research for {s}?',
         'Who runs the space program of {s}?'),
        (),
        ('The space program of {s} is run by {o}.',),
        ('Which country has a space program run by {o}?',),
        ('Which country does {o} serve?',),
        ('the country that {o} works for',)),
    'internet_domain': Relation(
        'country', '',
        ('The internet country code of {s} is {o}.',
         'Web addresses in {s} end in {o}, its internet country code.'),
        ('What is the internet country code of {s}?',),
        ('What is the internet country code of {s}?', 'In which letters do web addresses of {s} end?',
         'Which top-level domain belongs to {s}?'),
        (),
        ('The internet country code of {s} is {o}.',)),
    'dialing_code': Relation(
        'country', '',
        ('The telephone dialing code of {s} is {o}.',
         'Telephone calls to {s} start with the dialing code {o}.'),
        ('What is the telephone dialing code of {s}?',),
        ('With which prefix do phone calls to {s} begin?', 'What is the international calling code of {s}?'),
        (),
        ('Phone calls to {s} begin with {o}.',)),
    'aircraft_prefix': Relation(
        'country', '',
        ('Civil aircraft of {s} carry the registration prefix {o}.',
         'The civil aircraft registration prefix of {s} is {o}.'),
        ('What is the civil aircraft registration prefix of {s}?',),
        ('Which prefix do planes registered in {s} carry?',
         'How does the registration of a plane from {s} begin?'),
        (),
        ('Planes registered in {s} carry the prefix {o}.',)),
    'in_country': Relation(
        'city', 'country',
        ('{s} is a city in {o}.', '{s} is a city located in the country of {o}.',
         'The city of {s} lies in {o}.'),
        ('In which country is the city of {s}?', 'Which country is {s} a city in?'),
        ('In which country is {s}?', 'To which country does {s} belong?',
         'In which land would you be when in {s}?'),
        ('the country where {s} lies', 'the country in which {s} is found',
         'the nation to which {s} belongs'),
        ('{s} lies in {o}.', '{s} is found in {o}.')),
    'in_state': Relation(
        'city', 'state',
        ('{s} is a city in the U.S. state of {o}.', 'The city of {s} lies in the U.S. state of {o}.'),
        ('In which U.S. state is the city of {s}?',),
        ('In which U.S. state is {s}?', 'To which U.S. state does {s} belong?'),
        (),
        ('{s} lies in the U.S. state of {o}.',)),
    'in_division': Relation(
        'city', 'division',
        ('{s} is situated in {o}.', 'The division around {s} is {o}.'),
        ('In which administrative division is {s} situated?',),
        ('In which administrative division does {s} lie?', 'Which administrative division contains {s}?'),
        ('the administrative division around {s}', 'the administrative division that contains {s}'),
        ('{s} lies in {o}.',)),
    'city_population': Relation(
        'city', '',
        ('It has a population of about {o}.', 'Its population is about {o}.',
         'About {o} people live there, its population.'),
        ('What is the population of the city of {s}?',),
        ('How many people live in {s}?',)),
    'serves': Relation(
        'airport', 'city',
        ('{s} is an airport serving {o}.', '{s} is the name of an airport that serves {o}.'),
        ('Which city does {s} serve?', 'Which city is served by {s}?'),
        ('Which city does {s} serve?', 'Passengers who land at {s} arrive in which city?'),
        ('the city served by {s}', 'the city where passengers of {s} land'),
        ('{s} serves {o}.', 'Passengers who land at {s} arrive in {o}.'),
        ('Which airport serves {o}?', 'What is the name of the airport serving {o}?'),
        ('Which airport serves {o}?', 'At which airport do planes to {o} land?'),
        ('the airport that serves {o}', 'the airport of {o}')),
    'iata_code': Relation(
        'airport', '',
        ('Its IATA code is {o}.', 'It has the IATA code {o}.'),
        ('What is the IATA code of {s}?',),
        ('What is the IATA code of {s}?', 'Which three letters mark {s} on a luggage tag?'),
        (),
        ('The IATA code of {s} is {o}.',),
        ('Which airport has the IATA code {o}?',),
        ('Which airport has the code {o} on luggage tags?',),
        ('the airport with the code {o}', 'the airport shown as {o} on luggage tags')),
    'airport_elevation': Relation(
        'airport', '',
        ('Its elevation is {o}.', 'It lies at an elevation of {o}.'),
        ('What is the elevation of {s}?',),
        ('How high above the sea is {s}?',)),
    'area': Relation(
        'country', '',
        ('{s} covers an area of {o}.', 'The total area of {s} is {o}.'),
        ('What is the area of {s}?',)),
    'population': Relation(
        'country', '',
        ('{s} has a population of {o}.', 'The population of {s} is {o}.'),
        ('What is the population of {s}?',)),
    'coastline': Relation(
        'country', '',
        ('{s} has a coastline of {o}.', 'The coastline of {s} is {o} long.'),
        ('How long is the coastline of {s}?',)),
    'gdp_per_person': Relation(
        'country', '',
        ('The GDP per person of {s} is {o}.', '{s} has a GDP per person of {o}.'),
        ('What is the GDP per person of {s}?',)),
    'median_age': Relation(
        'country', '',
        ('The median age in {s} is {o}.', '{s} has a population with a median age of {o}.'),
        ('What is the median age in {s}?',)),
    'life_expectancy': Relation(
        'country', '',
        ('Life expectancy at birth in {s} is {o}.', 'In {s}, life expectancy at birth reaches {o}.'),
        ('What is the life expectancy at birth in {s}?',)),
    'railways': Relation(
        'country', '',
        ('The railways of {s} have a length of {o}.', '{s} has railways with a total length of {o}.'),
        ('What is the length of the railways of {s}?',)),
}
