package detect

import (
	"strings"
	"sync"
)

const (
	given     = 1 << iota // a given name
	family                // a family name
	listed                // a given or a family name, of a list that does not say which
	word                  // a word of English, too
	title                 // Mr, Dr
	notName               // never one: machines, projects, months
	organ                 // what ends the name of a company or a place
	placeName             // a town, a country, a people or its language
	ambiguous             // a name as well as a place, a machine or a program
	street                // what a street's name ends with
	suffix                // what the name of a street may end with, where more says that it is one

	aName = given | family | listed
)

// lexicon is what capitalised words are known to be. It is read once from what is linked in.
var lexicon = sync.OnceValue(func() *table {
	out := linkedIn()
	put := func(list string, flag uint16, alone bool) {
		for w := range strings.FieldsSeq(list) {
			if alone {
				out.set(w, 0)
			}
			out.set(w, out.of(w)|flag)
		}
	}
	put("Mr Mrs Ms Mx Miss Dr Prof Professor Sir Madam Mister Herr Frau Mme Monsieur Señor Señora", title, true)
	put(`January February March April May June July August September October November December Monday Tuesday Wednesday Thursday Friday Saturday Sunday
		Ampere Blackwell Darwin Debian Falcon Fedora Gemini Gemma Gloo Hopper Kepler Lora Lovelace Llama Mistral
		Pascal Phi Prometheus Python Rust Tesla Turing Ubuntu Volta Vulkan Xeon Loki Sentry Kafka Redis Apollo Atlas Jira Docker Chrome Java Perl Linux Apache Nginx Nomad
		Consul Vault Envoy Helm Caddy Celery Django Flask Rails Angular Kotlin Scala Groovy Haskell Erlang Elixir Clojure Fortran Lua Emacs Vim Oracle Intel Nvidia Amazon Google
		Microsoft Samsung Firefox Safari Chromium Mozilla Postgres Ansible Terraform Grafana Kubernetes Slack Unicode Boolean Latin Mac Bluetooth Ethernet Wikipedia Yahoo
		Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Wed Thu Fri Sat Sun Texas Florida Asia America Africa Europe The This That These Those
		There Then They You Your What When Where Why How Our His Her She Its See Not No Yes Ok And But For From With Please Thanks Thank Hello Dear Best Regards Sincerely Cheers
		All World Everyone Everybody Folks Friends Sirs Customer Customers User Users Admin Administrator Support Guys Ladies Gentlemen Again
		Error Info Warning Debug Trace Fatal Critical Notice Started Starting Stopped Stopping Loading Loaded Failed Using Model Server Client Token Tokens
		Hard Disk Flash Data Solid Network Access Pro Total
		Copyright Issue Issues Section Chapter Version Figure Table Page Part Step Phase Line Lines Windows Level Appendix Note Notes Item Task Job Name Node Output Close Scan
		Request Response Error Exception Process Service Worker Engine Cache Memory Device Driver Kernel Total Max Min Avg Internet English Spanish`, notName, true)
	put(`Jan Ada Claude Grace Julia Ray Ruby Jordan Chad Georgia Kenya Israel Paris London Berlin Virginia Carolina Dakota Montana Sydney Houston Dallas Lincoln Jackson
		Madison Austin Phoenix Orlando Charlotte Victoria Alexandria Santiago Jasper Aurora Athena Jenkins Maxwell Holland Ireland Jersey India China Cuba`, ambiguous, false)
	put(`American British English Scottish Welsh Irish French German Austrian Swiss Spanish Catalan Italian Portuguese Dutch Belgian Danish Swedish Norwegian Finnish Icelandic
		Polish Czech Slovak Hungarian Romanian Bulgarian Croatian Serbian Slovenian Russian Ukrainian Turkish Greek Arab Arabic Persian Iranian Iraqi Egyptian Israeli Jewish
		Muslim Hindu Buddhist Catholic Indian Pakistani Chinese Japanese Korean Thai Vietnamese Indonesian Filipino Australian Canadian Mexican Brazilian Argentine Cuban
		African Asian European Western Eastern Boston Chicago Denver Seattle Atlanta Miami Detroit Philadelphia Baltimore Minneapolis Cleveland Pittsburgh Cincinnati
		Milwaukee Memphis Nashville Portland Sacramento Tucson Fresno Omaha Oakland Tulsa Tampa Honolulu Manchester Liverpool Birmingham Glasgow Leeds Bristol Cambridge
		Oxford Munich Hamburg Frankfurt Cologne Lyon Marseille Toulouse Bordeaux Milan Naples Turin Venice Florence Geneva Barcelona Valencia Seville Bilbao Porto
		Rotterdam Utrecht Antwerp Ghent Krakow Gdansk Kyoto Osaka Nagoya Mumbai Delhi Bangalore Chennai Pune Hyderabad Lahore Shenzhen Guangzhou Wuhan Beijing Nanjing
		Montreal Ottawa Calgary Canberra Wellington California Hollywood Manhattan Brooklyn`, placeName, false)
	for _, list := range []map[string]bool{countries, stateNames} {
		for name := range list {
			put(strings.ReplaceAll(name, " ", "_"), placeName, false)
		}
	}
	put(`Inc Inc. LLC Ltd Corp Corporation Company Co Group GmbH AG SA BV NV Plc University College School Institute Hospital Bank Hotel Airport Station
		County City River Lake Mountain Island Islands Park Bay Beach Valley Museum Church Center Centre Foundation Association Club Team Server Service
		Systems Technologies Technology Software Labs Media Holdings Partners Industries Motors Airlines International`, organ, true)
	put(`Street St Avenue Ave Av Road Rd Boulevard Blvd Lane Ln Parkway Pkwy Terrace Highway Hwy Crescent Mews Turnpike Causeway Esplanade Freeway Expressway`, street, false)
	// The suffixes of the US' post (Publication 28, appendix C1), with their plurals.
	for w := range strings.FieldsSeq(`Alley Aly Annex Arcade Bayou Beach Bend Bluff Bottom Branch Bridge Brook Burg Bypass Camp Canyon Cape Center Centre Circle Cir Cliff Club
		Close Common Corner Course Court Ct Cove Creek Crest Crossing Crossroad Curve Dale Dam Divide Drive Dr Estate Extension Fall Ferry Field Flat Ford Forest
		Forge Fork Fort Garden Gateway Glen Green Grove Harbor Haven Height Hill Hollow Inlet Island Isle Junction Key Knoll Lake Land Landing Light Loaf Lock
		Lodge Loop Mall Manor Meadow Mill Mission Motorway Mount Mountain Neck Orchard Oval Overpass Park Pass Passage Path Pike Pine Place Pl Plain Plaza Point
		Port Prairie Quay Radial Ramp Ranch Rapid Rest Ridge Rise River Route Row Run Shoal Shore Skyway Spring Spur Square Sq Station Stravenue Stream Summit Throughway
		Trace Track Trafficway Trail Trl Tunnel Underpass Union Valley Viaduct View Village Ville Vista Walk Wall Way Well Vale Wynd Garth Rue Mead Croft`) {
		out.set(w, out.of(w)|suffix)
		out.set(w+"s", out.of(w+"s")|suffix)
	}
	return out
})

// unaccented replaces the letters of names that are often written without their accents.
var unaccented = strings.NewReplacer("á", "a", "à", "a", "â", "a", "ã", "a", "ä", "a", "å", "a", "ă", "a", "ą", "a", "ç", "c", "ć", "c", "č", "c", "ď", "d", "é", "e", "è", "e",
	"ê", "e", "ë", "e", "ě", "e", "ę", "e", "ė", "e", "í", "i", "ì", "i", "î", "i", "ï", "i", "ľ", "l", "ł", "l", "ñ", "n", "ń", "n", "ň", "n", "ó", "o", "ò", "o", "ô", "o", "õ", "o",
	"ö", "o", "ø", "o", "ő", "o", "ř", "r", "ś", "s", "š", "s", "ş", "s", "ș", "s", "ť", "t", "ţ", "t", "ț", "t", "ú", "u", "ù", "u", "û", "u", "ü", "u", "ů", "u", "ű", "u", "ý", "y", "ź", "z",
	"ž", "z", "ż", "z", "Á", "A", "À", "A", "Â", "A", "Ä", "A", "Å", "A", "Ç", "C", "Č", "C", "Ď", "D", "É", "E", "È", "E", "Í", "I", "İ", "I", "Ł", "L", "Ó", "O", "Ö", "O", "Ø", "O",
	"Ř", "R", "Š", "S", "Ş", "S", "Ș", "S", "Ú", "U", "Ü", "U", "Ž", "Z", "Ż", "Z")

// roads are what the name of a street begins with, in small letters and without the point of an abbreviation.
var roads = shapedSet(`rue avenue av ave boulevard bd blvd chemin ch allée allee impasse place pl quai route rte square cours passage voie drève faubourg sentier ruelle
	via viale v.le vicolo piazza piazzale largo corso strada contrada borgo lungomare salita rotonda
	calle c/ cl avda avenida carrera cra paseo plaza pza camino carretera ctra travesía ronda glorieta callejón calzada bulevar poblado colonia barrio explanada partida cerrada polígono urbanización bajada cuesta arrabal muelle privada andador circuito
	rua r travessa alameda praça praca estrada rodovia largo beco calçada azinhaga marginal ladeira viela jardim
	ul ulica al bulw wyb aleja aleje plac pl os osiedle rondo szosa skwer
	str strada aleea bulevardul intrarea calea șoseaua splaiul
	ulice nábř náměstí nám třída tř trg cesta
	jalan jln jl gang gg ds dk kpg psr
	carrer passeig avinguda rambla`)

// streetWords stand within or behind the name of a street.
var streetWords = wordSet(`Straße Strasse Str Weg Gasse Allee Platz Ufer Damm Ring Chaussee Steig Stieg Graben
	utca u út útja tér tere körút krt köz sor sétány fasor sugárút rakpart dűlő liget körtér főút lakótelep főtér országút határút
	Straat Laan Plein Gracht Kade Dreef Singel straat laan plein gracht
	Gatan Gata Vägen Väg Gränd Allé gatan gata vägen väg gränd allé gade vej Gade Vej vei veien gate Gate Vei
	katu tie kuja polku Katu
	ulica ul. ulice cesta trg trida náměstí nábřeží iela gatve bulvāris prospekts gatvė alėja
	sokak sokağı Sokak Sokağı sk cadde caddesi Cadde Caddesi cad Cad Cd bulvarı Bulvarı mahallesi Mahallesi
	küçəsi prospekti ko'chasi
	Street St Road Rd Avenue Ave Lane Boulevard Blvd`)

// streetEnds are how words end that name a street, by their last byte.
var streetEnds = func() (out [256][]string) {
	for end := range strings.FieldsSeq(`straße strasse gasse allee platz weg ufer damm steig steg graben ring hof markt berg stieg wall
		straat laan plein gracht kade dreef singel dijk plantsoen hof kamp pad park
		gatan vägen gränd gränden väg allén backen stigen gärdet torget
		vej gade stræde allé parken vænget toften
		veien vegen gata gate vei veg bakken haugen svingen stien alléen faret tunet kroken lia lien marka åsen toppen løkka terrasse
		katu tie kuja polku kaari linja raitti rinne penger ranta väylä
		utca útja`) {
		last := end[len(end)-1]
		out[last] = append(out[last], end)
	}
	return out
}()

// notStreets end so, and are none.
var notStreets = wordSet(`Brigade Renegade Blockade Decade Arcade Cascade Stockade Brocade Norweg Bowtie Hottie Australia Austria California Tallahassee Italia Natalia Amelia Julia Cordelia
	Cornelia Delegate Aggregate Propagate Navigate Investigate Mitigate Delegates Interrogate String During Bring Spring Monitoring Restoring Storing Filtering Buffering Clustering
	Rendering Engineering Offering Sharing Caring Scoring Tuning Firing Wiring Iceberg Bamberg Heidelberg Nuremberg Nürnberg Firewall Paywall Drywall Collegate Colgate Tollgate
	Alien Surveillance Brazilien Italien Spring Configuring Measuring Structuring Capturing Exploring Ignoring Retiring Acquiring Requiring Entering Registering Triggering Gathering
	Considering Ordering Layering Numbering Recovering Covering Powering Ramping Airing Pairing Repairing Comparing Preparing Declaring Clearing Bearing Hearing Nearing Gearing Wearing`)

// joins are small words within the name of a street or a town.
var joins = wordSet(`de la le les du des d' l' sur sous en aux lez lès van der den het 't op aan bij von zur zum am an im in bei auf und den del della dello dei degli delle di da dal al
	do dos das e y los las el san i o the of and upon under le ve nad pod na pri u près saint sainte à`)

// compass are words before the name of a street or a town.
var compass = wordSet(`N S E W NE NW SE SW North South East West Northeast Northwest Southeast Southwest New Old Upper Lower Great Little Saint St Mount Lake Port Fort Los Las San Santa El La Le`)

// towns are names of towns among the words that are no person's name.
var towns = wordSet(`Paris London Berlin Sydney Houston Dallas Lincoln Jackson Madison Austin Phoenix Orlando Charlotte Victoria Alexandria Santiago`)

var states = wordSet(`AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY
	DC PR GU VI AS MP FM MH PW AA AE AP AB BC MB NB NL NS ON PE QC SK NSW VIC QLD TAS ACT NT SA`)

// nameSet is the names between commas.
func nameSet(list string) map[string]bool {
	out := map[string]bool{}
	for name := range strings.SplitSeq(list, ",") {
		out[strings.Join(strings.Fields(name), " ")] = true
	}
	return out
}

var stateNames = nameSet(`Alabama, Alaska, Arizona, Arkansas, California, Colorado, Connecticut, Delaware, Florida, Georgia, Hawaii, Idaho, Illinois, Indiana, Iowa, Kansas, Kentucky,
	Louisiana, Maine, Maryland, Massachusetts, Michigan, Minnesota, Mississippi, Missouri, Montana, Nebraska, Nevada, New Hampshire, New Jersey, New Mexico, New York, North Carolina,
	North Dakota, Ohio, Oklahoma, Oregon, Pennsylvania, Rhode Island, South Carolina, South Dakota, Tennessee, Texas, Utah, Vermont, Virginia, Washington, West Virginia, Wisconsin,
	Wyoming, Ontario, Quebec, Québec, British Columbia, Alberta, Manitoba, Saskatchewan, Nova Scotia, New Brunswick, New South Wales, Queensland, Tasmania, South Australia,
	Western Australia`)

// countries are as CLDR names them in English, without islands that have no addresses, and with names that letters use.
var countries = nameSet(`Afghanistan, Albania, Algeria, Andorra, Angola, Argentina, Armenia, Aruba, Australia, Austria, Azerbaijan, Bahamas, Bahrain, Bangladesh, Barbados, Belarus,
	Belgium, Belize, Benin, Bermuda, Bhutan, Bolivia, Botswana, Brazil, Brunei, Bulgaria, Burkina Faso, Burundi, Cambodia, Cameroon, Canada, Cape Verde, Chile, China, Colombia,
	Comoros, Costa Rica, Croatia, Cuba, Curaçao, Cyprus, Czechia, Czech Republic, Denmark, Djibouti, Dominica, Dominican Republic, Ecuador, Egypt, El Salvador, Eritrea, Estonia,
	Eswatini, Ethiopia, Fiji, Finland, France, Gabon, Gambia, Germany, Ghana, Gibraltar, Great Britain, Greece, Greenland, Grenada, Guam, Guatemala, Guernsey, Guinea, Guyana, Haiti,
	Honduras, Hong Kong, Hungary, Iceland, India, Indonesia, Iran, Iraq, Ireland, Isle of Man, Israel, Italy, Jamaica, Japan, Jersey, Jordan, Kazakhstan, Kenya, Kosovo, Kuwait,
	Kyrgyzstan, Laos, Latvia, Lebanon, Lesotho, Liberia, Libya, Liechtenstein, Lithuania, Luxembourg, Macao, Madagascar, Malawi, Malaysia, Maldives, Mali, Malta, Mauritania,
	Mauritius, Mexico, Moldova, Monaco, Mongolia, Montenegro, Morocco, Mozambique, Myanmar, Namibia, Nepal, Netherlands, The Netherlands, New Zealand, Nicaragua, Niger, Nigeria,
	North Macedonia, Norway, Oman, Pakistan, Panama, Papua New Guinea, Paraguay, Peru, Philippines, Poland, Portugal, Puerto Rico, Qatar, Romania, Russia, Russian Federation, Rwanda,
	Samoa, San Marino, Saudi Arabia, Senegal, Serbia, Seychelles, Sierra Leone, Singapore, Slovakia, Slovenia, Somalia, South Africa, South Korea, Spain, Sri Lanka, Sudan, Suriname,
	Sweden, Switzerland, Syria, Taiwan, Tajikistan, Tanzania, Thailand, Togo, Tonga, Tunisia, Turkey, Türkiye, Turkmenistan, Uganda, Ukraine, United Arab Emirates, United Kingdom,
	United States, United States of America, Uruguay, Uzbekistan, Vanuatu, Venezuela, Vietnam, Yemen, Zambia, Zimbabwe, England, Scotland, Wales, Northern Ireland, USA, UK, UAE`)
