"""Ways of looking at whether texts bear a sentence out: `ports.SupportScorer`.

`words` needs no model and is the twin, `cross_encoder` runs a small model here, `judge` asks the model that writes
answers, in the words of `verdicts`; `late` stands for a scorer that is not there yet.
"""
