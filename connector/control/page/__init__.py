"""The status page and the API's: plain files, served as they are; nothing is built or fetched."""
