//! What only Anthropic's Messages API has.
