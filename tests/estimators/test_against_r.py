"""Weights, robust and clustered errors, random intercepts and ordered classes, against R.

The numbers are those that R 4 printed for these calls (survey, sandwich, survival, lme4, MASS):

    n <- 60; i <- 0:(n - 1)
    d <- data.frame(x = sin(i), z = (i %% 3) / 2 - .5, g = (i * 7) %% 12)
    d$f <- 1 + i %% 4; d$w <- 0.5 + ((i * 5) %% 11) / 4
    d$y <- 1 + 0.5 * d$x - d$z + cos(3 * i) + ((d$g * 5) %% 7) / 4
    d$b <- as.integer((i * 37) %% 100 < 45 + 25 * d$x)
    d$k <- (i * 13) %% 5 + (d$x > 0); d$c <- (i * 13) %% 5 + (d$g %% 4) * 2
    d$t <- 1 + (i * 29) %% 61 + 10 * (d$z > 0); d$e <- as.integer((i * 3) %% 7 > 1)
"""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedElasticNet,
    FederatedLogisticRegression,
    FederatedOrdinalRegression,
    FederatedPoissonRegressor,
)

I = np.arange(60)  # noqa: E741
Z = (I % 3) / 2 - 0.5
X = np.c_[np.sin(I), Z]
G = (I * 7) % 12
SITES = G % 3  # clusters are within sites
F, W = 1 + I % 4, 0.5 + ((I * 5) % 11) / 4
DATA = {
    "y": 1 + 0.5 * X[:, 0] - Z + np.cos(3 * I) + ((G * 5) % 7) / 4,
    "b": (45 + 25 * X[:, 0] > (I * 37) % 100).astype(float),
    "k": (I * 13) % 5 + (X[:, 0] > 0.0),
}
MADE = {"y": FederatedElasticNet, "b": FederatedLogisticRegression, "k": FederatedPoissonRegressor}
N, P, CLUSTERS = 60, 3, 12

# glm(y ~ x + z), of b binomial, of k poisson:
# robust: vcovHC(m, "HC1"); cluster: vcovCL(m, ~g, type = "HC1")
# frequency: glm and vcovHC(m, "HC1") of d[rep(1:n, d$f), ]
# sampling: svyglm of svydesign(~1, weights = ~w), and of (~g, weights = ~w); quasi-families
OF_R = {
    ("y", "robust", None): (
        [1.763577419612911, 0.477403670749255, -0.242778264603929],
        [0.107842631578455, 0.161272605710425, 0.226027809023716],
    ),
    ("y", "cluster", None): (
        [1.763577419612911, 0.477403670749255, -0.242778264603929],
        [0.1389371415782352, 0.0999626354915538, 0.1289747584221479],
    ),
    ("y", "model", "frequency"): (
        [1.752716636353809, 0.436450463124565, -0.377479073457765],
        [0.0645779238224205, 0.0917984821489110, 0.1585357045182368],
    ),
    ("y", "robust", "frequency"): (
        [1.752716636353809, 0.436450463124565, -0.377479073457765],
        [0.0644842035345236, 0.0928916665791005, 0.1405857428037408],
    ),
    ("y", "robust", "sampling"): (
        [1.768887928136830, 0.531401488786509, -0.229534862733664],
        [0.118260164871463, 0.181263120918728, 0.251091371955103],
    ),
    ("y", "cluster", "sampling"): (
        [1.768887928136830, 0.531401488786509, -0.229534862733664],
        [0.145880243971365, 0.105749860672528, 0.152018054252430],
    ),
    ("b", "robust", None): (
        [-0.122513035879647, 1.256656349434377, -0.518444026064657],
        [0.288601902935007, 0.450373874433295, 0.746798975012483],
    ),
    ("b", "cluster", None): (
        [-0.122513035879647, 1.256656349434377, -0.518444026064657],
        [0.174099221078910, 0.404747350733821, 0.356723341632980],
    ),
    ("b", "model", "frequency"): (
        [-0.0192679353751193, 1.1490621402340877, -0.3745041032470353],
        [0.177271740101568, 0.261776429968820, 0.435609178973252],
    ),
    ("b", "robust", "frequency"): (
        [-0.0192679353751193, 1.1490621402340877, -0.3745041032470353],
        [0.177590929302427, 0.276406385380317, 0.464772140341105],
    ),
    ("b", "robust", "sampling"): (
        [-0.299890000589417, 1.454354353898393, -1.257435373988688],
        [0.310919318644610, 0.468110223543025, 0.826336540610590],
    ),
    ("b", "cluster", "sampling"): (
        [-0.299890000589417, 1.454354353898393, -1.257435373988688],
        [0.224464093505915, 0.410158986857063, 0.507214376758568],
    ),
    ("k", "robust", None): (
        [0.8894329949662657, 0.3092087873963473, 0.0142460407141454],
        [0.0845563125782614, 0.1135077959977511, 0.1894636443458005],
    ),
    ("k", "cluster", None): (
        [0.8894329949662657, 0.3092087873963473, 0.0142460407141454],
        [0.0262123604763001, 0.1097893163788563, 0.0203692418226612],
    ),
    ("k", "model", "frequency"): (
        [0.8920557185833040, 0.3172854771279503, 0.0187068967865077],
        [0.0533345627158184, 0.0754386622189513, 0.1257965129845901],
    ),
    ("k", "robust", "frequency"): (
        [0.8920557185833040, 0.3172854771279503, 0.0187068967865077],
        [0.0545368870371299, 0.0736456847221714, 0.1169058191034123],
    ),
    ("k", "robust", "sampling"): (
        [0.8890517687831936, 0.3197707275350490, -0.0410603253411406],
        [0.0900197659778374, 0.1171421734010052, 0.1947570152991175],
    ),
    ("k", "cluster", "sampling"): (
        [0.8890517687831936, 0.3197707275350490, -0.0410603253411406],
        [0.0510391158387011, 0.1190910029347625, 0.1069334695487406],
    ),
}


@pytest.mark.parametrize(("outcome", "inference", "kind"), OF_R)
def test_weights_and_errors(outcome, inference, kind):
    free = {"C": np.inf} if outcome == "b" else {"alpha": 0}
    model = MADE[outcome](inference=inference, weight_kind=kind, tol=1e-12, **free)
    weights = {None: None, "frequency": F, "sampling": W}[kind]
    by = {"clusters": G} if inference == "cluster" else {}
    model.fit(X, DATA[outcome], SITES, weights, **by)
    values, errors = OF_R[outcome, inference, kind]
    if kind == "sampling":  # survey has no n - p, and counts rows or clusters
        units = (N - 1) / N if inference == "robust" else 1.0
        units *= N / (N - P) if inference == "robust" else (N - 1) / (N - P)
        errors = np.sqrt(units) * np.array(errors)
    at = [-1, 0, 1]
    np.testing.assert_allclose(model.estimates_.values[at], values, rtol=1e-9)
    np.testing.assert_allclose(model.estimates_.bse[at], errors, rtol=1e-8)


# coxph(Surv(t, e) ~ x + z, d, ties = ties, robust = TRUE), cluster = g, weights = w and robust
OF_COXPH = {
    ("breslow", "robust", False): (
        [0.000587880176129744, -0.610134226606642627], [0.221624503464277, 0.413016609251399]),
    ("breslow", "cluster", False): (
        [0.000587880176129744, -0.610134226606642627], [0.209964577863324, 0.333099216488944]),
    ("breslow", "robust", True): (
        [-0.0417683604804958, -0.8522793094165917], [0.219330894732144, 0.451697011413274]),
    ("efron", "robust", False): (
        [0.00091358169766929, -0.61059652270210962], [0.222022696196390, 0.413793068731628]),
    ("efron", "cluster", False): (
        [0.00091358169766929, -0.61059652270210962], [0.209854803069367, 0.333553361238791]),
    ("efron", "robust", True): (
        [-0.0415136940835274, -0.8523920197200383], [0.219695147582172, 0.452473911120709]),
}  # fmt: skip


@pytest.mark.parametrize(("ties", "inference", "weighted"), OF_COXPH)
def test_cox(ties, inference, weighted):
    y = np.c_[1 + (I * 29) % 61 + 10 * (Z > 0), (I * 3) % 7 > 1]
    kind = "sampling" if weighted else None
    model = FederatedCoxRegression(alpha=0, ties=ties, inference=inference, weight_kind=kind)
    by = {"clusters": G} if inference == "cluster" else {}
    model.fit(X, y, None, W if weighted else None, **by)
    values, errors = OF_COXPH[ties, inference, weighted]
    np.testing.assert_allclose(model.coef_, values, rtol=1e-8)
    np.testing.assert_allclose(model.bse_, errors, rtol=1e-8)


# lmer(y ~ x + z + (1 | g), d, REML = reml): fixef, errors, sdcor, logLik
OF_LMER = {
    False: ([1.763127113551985, 0.491335406980098, -0.243171118597045],
            [0.131035957528128, 0.156177882112943, 0.320763202837850],
            [0.302445024464646, 0.755864675934533], -71.871205941308),
    True: ([1.762989945657169, 0.495579158276661, -0.243290785996356],
           [0.145754008981309, 0.162363247884958, 0.356820826493383],
           [0.372359858663725, 0.761407961003728], -74.0186405103003),
}  # fmt: skip


@pytest.mark.parametrize("reml", OF_LMER)
def test_random_intercepts(reml):
    model = FederatedElasticNet(alpha=0, inference="model", site_effects="random", reml=reml)
    model.fit(X, DATA["y"], SITES, clusters=G)
    values, errors, deviations, loglik = OF_LMER[reml]
    at = [-1, 0, 1]
    np.testing.assert_allclose(model.estimates_.values[at], values, rtol=1e-6)
    np.testing.assert_allclose(model.estimates_.bse[at], errors, rtol=1e-5)
    np.testing.assert_allclose([model.site_sd_, model.residual_sd_], deviations, rtol=1e-5)
    np.testing.assert_allclose(model.loglik_, loglik, rtol=1e-10)


# glmer(c ~ x + z + (1 | g), d, poisson, nAGQ = q): fixef, errors, sdcor
OF_GLMER = {
    1: ([1.514137836080723, 0.051243742643872, 0.000207396413100],
        [0.143951200657832, 0.106583372230555, 0.349721253535864], 0.446421673400642),
    7: ([1.513948971205295, 0.051243601679268, 0.000202985182714],
        [0.144472734899094, 0.107253523983187, 0.350880103091273], 0.447449553890118),
}  # fmt: skip


@pytest.mark.parametrize("nodes", OF_GLMER)
def test_random_intercepts_of_counts(nodes):
    """lme4's search ends at five digits, and its errors are of numerical second derivatives."""
    model = FederatedPoissonRegressor(
        alpha=0, inference="model", site_effects="random", nodes=nodes
    )
    model.fit(X, (I * 13) % 5 + (G % 4) * 2, SITES, clusters=G)
    values, errors, deviation = OF_GLMER[nodes]
    at = [-1, 0, 1]
    np.testing.assert_allclose(model.estimates_.values[at], values, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.estimates_.bse[at], errors, rtol=0.01)
    np.testing.assert_allclose(model.site_sd_, deviation, rtol=1e-4)


# p: these rows, and g = (0:59) %% 6; m <- polr(ordered(y) ~ a + b, p, Hess = TRUE)
# coef(m), m$zeta; sqrt(diag(vcov(m))); logLik(m); sqrt(diag(sandwich(m)))
# sqrt(diag(vcovCL(m, p$g, type = "HC0", cadjust = FALSE)))
A = [0.03, 1.36, 1.22, -0.51, -0.3, -0.53, 0.57, -0.06, 0.75, -1.85, 1.57, -0.1, 0.68, -0.14,
     -0.38, 0.46, 0.82, -0.2, -0.15, 0.69, -0.87, -1.51, 0.39, -0.67, -1.92, -0.81, -0.47, -1.19,
     -1.49, 0.04, 0.9, -0.23, -0.74, 0.38, 0.72, -0.3, 0.54, 1.04, -0.21, -0.81, 0.35, 0.25, 1.1,
     -1.28, -0.66, -0.84, -1.73, 0.13, 0.53, -0.74, 1.39, 0.82, 0.63, 0.4, 0.96, -1.33, 0.61, 0.6,
     -1.77, 0.35]  # fmt: skip
B = [*map(int, "000100001110100111100110101000111001100000010110101011100010")]
Y = [*map(int, "033122330011332010300003000010000211111030003200320202323111")]
COEF, ZETA = [0.462374394255737, -1.024232945988311], [
    -0.855810203345502, 0.114859491771290, 0.909246587145426]  # fmt: skip
ERRORS = {
    "model": [0.280088875156292, 0.499611692087913, 0.358828969488704, 0.336978856872712,
              0.362696954954636],
    "robust": [0.250222587380982, 0.510510204171136, 0.364364132392852, 0.344483624351055,
               0.348495656795040],
    "cluster": [0.160853330403312, 0.801739198244814, 0.391986700489932, 0.284812144799315,
                0.400537849032769],
}  # fmt: skip


@pytest.mark.parametrize("inference", ERRORS)
def test_ordered_classes(inference):
    model = FederatedOrdinalRegression(inference=inference)
    by = {"clusters": I % 6} if inference == "cluster" else {}
    model.fit(np.c_[A, B], Y, I % 3, **by)
    np.testing.assert_allclose(model.coef_, COEF, rtol=1e-7)
    np.testing.assert_allclose(model.thresholds_, ZETA, rtol=1e-6)
    np.testing.assert_allclose(model.loglik_, -74.994625459235, rtol=1e-12)
    small = {"model": 1.0, "robust": 60 / 55, "cluster": 6 / 5 * 59 / 55}[inference]
    errors = np.sqrt(small) * np.array(ERRORS[inference])
    np.testing.assert_allclose([*model.bse_, *model.thresholds_bse_], errors, rtol=2e-5)
