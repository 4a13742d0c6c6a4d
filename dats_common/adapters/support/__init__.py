"""Ways of looking at whether texts bear a sentence out: `ports.SupportScorer`.

`words` needs no model and is the twin, `judge` asks the model that writes answers, in the words of `verdicts`; a small
model that runs here is in `adapters.cross_encoder`.
"""
