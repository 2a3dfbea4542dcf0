"""Care for a landing zone that has run for long: removes what nobody needs, makes few files of many."""
