"""Real grouped data of statsmodels, and what lme4 finds of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import statsmodels.api as sm

COLUMNS = ["disea", "physlm", "hlthg", "hlthf", "hlthp"]


class Known(NamedTuple):
    """What lme4 finds; of coefficients and their errors the intercept comes first."""

    sd: float
    coefficients: list[float]
    errors: list[float]
    loglik: float
    sd_error: float | None = None
    residual: float | None = None
    effects: list[float] = []  # noqa: RUF012
    """The first ones, by lme4's own estimates."""


def visits():
    """Return each fifth row of `randhie`, with plan, family (lpi in a plan) and an exposure."""
    d = sm.datasets.randhie.load_pandas().data[::5].reset_index(drop=True)
    d["plan"] = d["lncoins"].rank(method="dense").astype(int)
    d["family"] = [f"{a} {b}" for a, b in zip(d["plan"], d["lpi"], strict=True)]
    d["years"] = 1.0 + d["fmde"] / 10
    d["any"], d["log"] = np.where(d["mdvis"] > 0, "yes", "no"), np.log1p(d["mdvis"])
    return d


def firms():
    """Return Grunfeld's firms."""
    return sm.datasets.grunfeld.load_pandas().data


LME4 = {
    # lme4 1.1-31 in R 4.2.2: lmer(invest ~ value + capital + (1 | firm)), theta by Newton's method
    # on its deviance function with numDeriv's derivatives.
    "firms": Known(
        77.2671634823761,
        [-53.912543105243095, 0.109289189708596, 0.307977228615520],
        [25.21827704468318, 0.00982059494972669, 0.01628219960314974],
        -1194.44989601812,
        residual=50.0622100555296,
        effects=[32.8333940770877, -58.2715756936388, 26.3812579490533],
    ),
    "firms, reml": Known(
        82.1029734489018,
        [-54.031820596347863, 0.109351979482466, 0.308199721863307],
        [26.62355101699657922, 0.00998668032057812, 0.01636768870134900],
        -1197.30805368109,
        residual=50.2747609295174,
        effects=[33.00431607569650, -58.40328174806379, 26.48718102120114],
    ),
    # As above: lmer(log1p(mdvis) ~ disea + physlm + hlthg + hlthf + hlthp + (1 | plan:lpi)).
    "families": Known(
        0.360608134510191,
        [0.700411509773767427, 0.023237905773919976, 0.164593864213444546,
         0.000831702708887132, 0.044429831590570228, 0.155238340815368220],
        [0.0332871246565736, 0.0019537201065024, 0.0415825140407897, 0.0273453519732339,
         0.0501945947043152, 0.1101576711974610],
        -4794.14276768329, effects=[0.06860565],
    ),
    "families, reml": Known(
        0.361736978452040,
        [0.700468630568016337, 0.023235949323012449, 0.164552344748354729,
         0.000846941150785458, 0.044487513310473119, 0.155198737386149088],
        [0.03332877173166477, 0.00195510836939151, 0.04161244075611392, 0.02736551041119749,
         0.05023220573980377, 0.11024173165017583],
        -4810.69267739832, effects=[0.06860565],
    ),
    # glmer(..., nAGQ = 7, tolPwrss = 1e-13) of the same versions: the maximum of its deviance
    # function by Newton's method with numDeriv's derivatives in units of standard errors, whose
    # inverse second derivatives the errors are. (glmer's own are off by some 1e-5, by finite
    # differences.) lme4 leaves constants of Poisson's likelihood out.
    "counts": Known(
        0.10690942024358,
        [0.50209711936830581, 0.03316696920208289, 0.28156077337782992, -0.00187107716758615,
         0.04750227659311709, 0.26013273063863274],
        [0.05237873213355490, 0.00124777579995066, 0.02700143403384455, 0.02063187987200628,
         0.03428618182754115, 0.06002093453285751],
        -8359.06724845901, 0.0352981453098423,
        effects=[0.1706950379749320, 0.0340812303568347, -0.0188192749677338],
    ),
    "counts of families": Known(
        0.932934518828612,
        [0.2895565564182291, 0.0285661776489002, 0.2434132282607988, 0.0426198450943824,
         0.0837726486894019, 0.1303431840959374],
        [0.04837424269487473, 0.00143631285792292, 0.03067706856027907, 0.02324620876023419,
         0.03968786479368642, 0.07369778538210821],
        -7191.36422035955, 0.0392774487633724, effects=[0.473180827126421],
    ),
    "rates of families": Known(
        1.03831350063839,
        [-0.0183369259269062, 0.0288356074611589, 0.2382534595248105, 0.0380666982282276,
         0.0725132805844267, 0.0573651986207471],
        [0.05198308143142913, 0.00144141476279466, 0.03088088467537253, 0.02331395736351752,
         0.03990381498558710, 0.07366586594864540],
        -7389.2711678576, 0.042253618577344, effects=[0.7226901929763762],
    ),
    # The same, of whether there is a count: glmer((mdvis > 0) ~ ... + (1 | plan:lpi), binomial).
    "any of families": Known(
        1.13971685660044,
        [0.4558219915380942, 0.0565006900498869, 0.2014282316239906, -0.1155564614869477,
         -0.0570440257667197, -0.1790124008301964],
        [0.11186412442156031, 0.00653986261569865, 0.13370041912847172, 0.08237694877833733,
         0.15645364373106796, 0.36107055505793095],
        -2369.03020961415, 0.12742853488803, effects=[0.0486368581],
    ),
    # As above, of plans 1 to 4 with a coefficient each, and families within them that are random:
    # lmer(log1p(mdvis) ~ disea + physlm + hlthg + hlthf + hlthp + plan + (1 | family), REML=FALSE).
    "families in plans": Known(
        0.307430478432509,
        [0.84667614707599026, 0.02471045392393243, 0.16581218449171892, -0.00432589916320203,
         0.02650164368065291, 0.15619211462161650, -0.24850012496942772, -0.25410818819876824,
         -0.44841508921519380],
        [0.03953178502776648, 0.00199637892192923, 0.04202542477590374, 0.02790382125221854,
         0.05084108711659065, 0.11111984733810153, 0.05877534311324544, 0.09958506886464305,
         0.06551561954751857],
        -4507.50636543151,
    ),
}  # fmt: skip
