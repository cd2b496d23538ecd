"""N-gram lookup: drafts copied from earlier in the text, or from a store of earlier texts."""
