"""Care for a landing zone that has run for long: what nobody needs any more is removed."""
